# SPDX-License-Identifier: Apache-2.0
"""The float64 truth that results are compared with: cases, inputs and the allowed error."""
