# SPDX-License-Identifier: Apache-2.0
"""Functions of single elements, with vectors and numbers beside them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def soft_cap(x: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(x / cap)


def scaled_shift(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x * weight + bias


def leaky_affine(x: Tensor, weight: Tensor, bias: Tensor, slope: float = 0.1) -> Tensor:
    h = x * weight + bias
    return F.leaky_relu(h, slope)


def bias_gelu_erf(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


def bias_gelu_tanh(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias, approximate="tanh")


def squared_relu(x: Tensor) -> Tensor:
    return torch.relu(x) ** 2


def mish(x: Tensor) -> Tensor:
    return x * torch.tanh(F.softplus(x))


def hard_swish(x: Tensor) -> Tensor:
    return x * torch.clamp(x + 3, 0, 6) / 6


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return torch.where(x > 0, x, alpha * torch.expm1(x))


def gaussian(x: Tensor, mean: Tensor, sigma: float) -> Tensor:
    z = (x - mean) / sigma
    return torch.exp(-0.5 * z * z)


def sine_activation(x: Tensor, omega: float = 30.0) -> Tensor:
    return torch.sin(omega * x)


def bend(x: Tensor, alpha: Tensor) -> Tensor:
    return x + torch.tanh(alpha * x) ** 2 / (alpha * alpha + 1.0)


def lerp_rows(x: Tensor, other: Tensor, amount: Tensor) -> Tensor:
    """The amount is one number per row."""
    return x + (other - x) * amount.unsqueeze(-1)


def clamp_low(x: Tensor, low: float = -0.5) -> Tensor:
    return torch.clamp(x, min=low) ** 3


def smooth_abs(x: Tensor, eps: float = 1e-3) -> Tensor:
    return torch.sqrt(x * x + eps)


def polar(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    radius = torch.sqrt(x * x + y * y + 1.0)
    angle = torch.atan(y / (torch.abs(x) + 1.0))
    return radius, angle


def temperature(x: Tensor, scale: Tensor) -> Tensor:
    """The scale is a single number in a tensor."""
    return torch.tanh(x * scale)


def log_gate(x: Tensor, up: Tensor) -> Tensor:
    return F.logsigmoid(x) * up
