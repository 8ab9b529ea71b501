# SPDX-License-Identifier: Apache-2.0
"""Steps of optimisers, and steps of physics without neighbours."""

from __future__ import annotations

import torch
from torch import Tensor


def adam_step(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, lr: float, beta1: float, beta2: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    m2 = beta1 * m + (1 - beta1) * g
    v2 = beta2 * v + (1 - beta2) * g * g
    p2 = p - lr * m2 / (torch.sqrt(torch.clamp(v2, min=0.01)) + eps)
    return p2, m2, v2


def momentum_step(
    p: Tensor, g: Tensor, m: Tensor, lr: float, momentum: float = 0.9
) -> tuple[Tensor, Tensor]:
    m2 = momentum * m + g
    return p - lr * m2, m2


def lion_direction(g: Tensor, m: Tensor, beta1: float = 0.9) -> Tensor:
    return torch.tanh(10.0 * (beta1 * m + (1 - beta1) * g))


def weight_decay(p: Tensor, lr: float, decay: float = 0.1) -> Tensor:
    return p * (1 - lr * decay)


def clip_by_norm(g: Tensor, limit: float = 1.0) -> Tensor:
    return g * (limit / torch.clamp(g.norm(), min=1.0))


def leapfrog(x: Tensor, v: Tensor, force: Tensor, step: float = 0.01) -> tuple[Tensor, Tensor]:
    v2 = v + step * force
    return x + step * v2, v2


def pendulum(angle: Tensor, speed: Tensor, step: float, damping: float) -> tuple[Tensor, Tensor]:
    speed2 = speed - step * (torch.sin(angle) + damping * speed)
    angle2 = angle + step * speed2
    return angle2, speed2


def logistic_growth(x: Tensor, rate: Tensor, step: float) -> Tensor:
    return x + step * rate * x * (1 - x)
