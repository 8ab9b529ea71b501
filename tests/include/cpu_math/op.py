# SPDX-License-Identifier: Apache-2.0
"""The functions of opforge/cpu/math.h, chosen by number."""

import torch
from torch import Tensor

from opforge import Op

FUNCTIONS = [torch.exp, torch.log, torch.tanh, torch.erf, torch.sigmoid, torch.exp, torch.exp]


def reference(x: Tensor, which: int) -> Tensor:
    """PyTorch's own."""
    return FUNCTIONS[which](x)


op = Op(schema="cpu_math(Tensor x, int which) -> Tensor y", reference=reference)
