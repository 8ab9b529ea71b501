# SPDX-License-Identifier: Apache-2.0
"""Losses: a number per row, or one number."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def mean_squared(x: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(x, target)


def huber_rows(x: Tensor, target: Tensor, delta: float = 1.0) -> Tensor:
    error = torch.abs(x - target)
    loss = torch.where(error < delta, 0.5 * error * error, delta * (error - 0.5 * delta))
    return loss.mean(-1)


def smooth_l1(x: Tensor, target: Tensor) -> Tensor:
    return F.smooth_l1_loss(x, target)


def binary_cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return (torch.relu(x) - x * target + torch.log1p(torch.exp(-torch.abs(x)))).mean()


def divergence(x: Tensor, target: Tensor) -> Tensor:
    logs = torch.log_softmax(x, -1)
    wanted = torch.softmax(target, -1)
    return (wanted * (torch.log(wanted) - logs)).sum(-1)


def soft_cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return -(target * torch.log_softmax(x, -1)).sum(-1).mean()


def focal(x: Tensor, target: Tensor, gamma: float = 2.0) -> Tensor:
    p = torch.sigmoid(x)
    hit = p * target + (1 - p) * (1 - target)
    loss = F.softplus(-x) * target + F.softplus(x) * (1 - target)
    return (loss * torch.exp(gamma * torch.log(1 - hit + 1e-6))).sum(-1)


def z_loss(x: Tensor, weight: float = 1e-4) -> Tensor:
    return weight * torch.logsumexp(x, -1).square().mean()


def gaussian_likelihood(x: Tensor, mean: Tensor, log_var: Tensor) -> Tensor:
    return 0.5 * (log_var + (x - mean) ** 2 * torch.exp(-log_var)).sum(-1)


def triplet(anchor: Tensor, near: Tensor, far: Tensor, margin: float = 0.2) -> Tensor:
    close = (anchor - near).square().sum(-1)
    apart = (anchor - far).square().sum(-1)
    return torch.relu(close - apart + margin)
