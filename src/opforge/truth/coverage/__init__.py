# SPDX-License-Identifier: Apache-2.0
"""Code coverage of an op's kernels and host functions, and the operands of their comparisons.

Coverage builds have a call at every block and comparison, and normal builds have none: see
:mod:`opforge.truth.coverage.recorder`.
"""
