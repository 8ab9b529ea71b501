# SPDX-License-Identifier: Apache-2.0
"""Which code of an op's kernels and host functions ran, and what it compared.

Builds of their own carry calls at every block and comparison: see :mod:`opforge.coverage.recorder`.
The kernels that users get have none.
"""
