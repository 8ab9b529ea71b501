# SPDX-License-Identifier: Apache-2.0
"""From a function in plain PyTorch to the kernels of an op, forward and backward."""
