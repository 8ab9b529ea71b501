# SPDX-License-Identifier: Apache-2.0
"""What results are compared with: cases, inputs, the float64 truth and the error it allows."""
