# SPDX-License-Identifier: Apache-2.0
"""Compares an op with the truth."""
