# SPDX-License-Identifier: Apache-2.0
"""``opforge tune`` measures which kernels make an op's matrix products fastest on this GPU."""
