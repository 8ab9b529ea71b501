# SPDX-License-Identifier: Apache-2.0
"""``opforge profile``: says what limits an op's kernels on a GPU. See docs/profile.md.

With a GPU and Nsight Compute, it measures. Otherwise it reports facts from the compiled code and
the simulator.
"""
