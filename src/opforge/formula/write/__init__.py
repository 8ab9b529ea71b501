# SPDX-License-Identifier: Apache-2.0
"""Writes the files of an op from the kernels of a formula."""
