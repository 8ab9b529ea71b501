# SPDX-License-Identifier: Apache-2.0
"""Modules around the built-in ops, with the arguments and the state_dict of torch.nn.

There is no ``inplace``, which a fused op cannot use, and losses have no class weights. ``Softmax``
and ``LogSoftmax`` use the last dim by default.
"""

from opforge.nn.dropout import Dropout
from opforge.nn.elementwise import BiasGELU, ReLU, ScaleBiasReLU
from opforge.nn.gated import GEGLU, ReGLU, SwiGLU
from opforge.nn.grouped import GroupedLinear
from opforge.nn.linear import MLP, GatedMLP, Linear
from opforge.nn.loss import CrossEntropyLoss, LinearCrossEntropyLoss
from opforge.nn.norm import GroupNorm, LayerNorm, RMSNorm
from opforge.nn.rotary import RotaryEmbedding
from opforge.nn.softmax import LogSoftmax, Softmax

__all__ = [
    "GEGLU",
    "MLP",
    "BiasGELU",
    "CrossEntropyLoss",
    "Dropout",
    "GatedMLP",
    "GroupNorm",
    "GroupedLinear",
    "LayerNorm",
    "Linear",
    "LinearCrossEntropyLoss",
    "LogSoftmax",
    "RMSNorm",
    "ReGLU",
    "ReLU",
    "RotaryEmbedding",
    "ScaleBiasReLU",
    "Softmax",
    "SwiGLU",
]
