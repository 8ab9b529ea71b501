# SPDX-License-Identifier: Apache-2.0
"""Modules around the built-in ops; state_dict, and the arguments that are there, as in torch.nn.

Left out: ``inplace``, which a fused op has no use for; class weights of a loss. ``Softmax`` and
``LogSoftmax`` take the last dim by default.
"""

from opforge.nn.dropout import Dropout
from opforge.nn.elementwise import BiasGELU, ReLU, ScaleBiasReLU
from opforge.nn.gated import GEGLU, ReGLU, SwiGLU
from opforge.nn.loss import CrossEntropyLoss, LinearCrossEntropyLoss
from opforge.nn.norm import GroupNorm, LayerNorm, RMSNorm
from opforge.nn.rotary import RotaryEmbedding
from opforge.nn.softmax import LogSoftmax, Softmax

__all__ = [
    "GEGLU",
    "BiasGELU",
    "CrossEntropyLoss",
    "Dropout",
    "GroupNorm",
    "LayerNorm",
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
