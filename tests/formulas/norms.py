# SPDX-License-Identifier: Apache-2.0
"""Norms over rows, over columns and over everything."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def norm_relu(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    h = F.layer_norm(x, x.shape[-1:], weight, bias, eps)
    return torch.relu(h)


def root_mean_square(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    v = x.float()
    scale = torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)
    return (v * scale * weight).to(x.dtype)


def gemma_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (1 + weight)


def residual_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    h = x + residual
    y = h * torch.rsqrt((h * h).mean(-1, keepdim=True) + eps) * weight
    return y, h


def unit_rows(x: Tensor, eps: float = 1e-6) -> Tensor:
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + eps)


def standardise(x: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / (x.std(-1, keepdim=True) + 1.0)


def scale_norm(x: Tensor, gain: float, eps: float) -> Tensor:
    size = torch.sqrt(x.square().sum(-1, keepdim=True) + eps)
    return gain * x / size


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    mean = x.mean(0)
    var = (x - mean).square().mean(0)
    return (x - mean) * torch.rsqrt(var + eps) * weight + bias


def frobenius(x: Tensor) -> Tensor:
    return x / (x.norm() + 1.0)


def weight_standard(x: Tensor, gain: Tensor) -> Tensor:
    """The gain is one number per row."""
    centred = x - x.mean(-1, keepdim=True)
    return gain[:, None] * centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
