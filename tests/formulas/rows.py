# SPDX-License-Identifier: Apache-2.0
"""Softmax and its like, and reductions."""

from __future__ import annotations

import torch
from torch import Tensor


def plain_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def scaled_softmax(x: Tensor, scale: float, bias: Tensor) -> Tensor:
    return torch.softmax(x * scale + bias, dim=-1)


def log_probabilities(x: Tensor) -> Tensor:
    return torch.log_softmax(x, dim=-1)


def soft_maximum(x: Tensor) -> Tensor:
    return torch.logsumexp(x, dim=-1)


def softmin_mean(x: Tensor, values: Tensor) -> Tensor:
    return (torch.softmax(-x, -1) * values).sum(-1)


def row_variance(x: Tensor) -> Tensor:
    return x.var(-1, keepdim=True)


def column_means(x: Tensor) -> Tensor:
    return x.mean(0)


def sum_of_squares(x: Tensor) -> Tensor:
    return (x * x).sum()


def cosine(x: Tensor, other: Tensor) -> Tensor:
    dot = (x * other).sum(-1)
    return dot / (x.norm(dim=-1) * other.norm(dim=-1) + 1.0)


def entropy(x: Tensor) -> Tensor:
    logs = torch.log_softmax(x, -1)
    return -(logs.exp() * logs).sum(-1)


def min_max(x: Tensor) -> Tensor:
    low = x.amin(-1, keepdim=True)
    high = x.amax(-1, keepdim=True)
    return (x - low) / (high - low + 1.0)
