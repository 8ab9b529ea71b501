# SPDX-License-Identifier: Apache-2.0
"""Modules around the built-in ops; arguments and state_dict as in torch.nn where it has them."""

from opforge.nn.dropout import Dropout
from opforge.nn.elementwise import BiasGELU, ReLU, ScaleBiasReLU
from opforge.nn.gated import GEGLU, ReGLU, SwiGLU
from opforge.nn.loss import CrossEntropyLoss, LinearCrossEntropyLoss
from opforge.nn.norm import LayerNorm, RMSNorm
from opforge.nn.rotary import RotaryEmbedding
from opforge.nn.softmax import LogSoftmax, Softmax

__all__ = [
    "GEGLU",
    "BiasGELU",
    "CrossEntropyLoss",
    "Dropout",
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
