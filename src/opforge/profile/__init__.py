# SPDX-License-Identifier: Apache-2.0
"""``opforge profile``: what an op's kernels do on a GPU, read in plain words. See docs/profile.md.

With a GPU and Nsight Compute it measures; without, it tells what the compiled code and the
simulator know.
"""
