# SPDX-License-Identifier: Apache-2.0
"""Modules around the built-in ops, with the arguments and state_dict of their torch.nn equivalents."""

from opforge.nn.elementwise import ReLU, ScaleBiasReLU

__all__ = ["ReLU", "ScaleBiasReLU"]
