# SPDX-License-Identifier: Apache-2.0
"""Dropout whose backward draws its own mask: the numbers after those of the forward.

The generator has moved on when the backward asks it, or the two kernels hand out its numbers to
elements in another order. Gradients flow through what was dropped.
"""

import torch

from opforge import Op


def kept(shape, p, seed, device, first=0):
    """Which elements stay, by a hash of their number; numbers begin at ``first``."""
    number = torch.zeros((), dtype=torch.int64, device=device)
    for n in shape:
        number = number.unsqueeze(-1) * n + torch.arange(n, device=device)
    bits = number + first + seed * 2654435761
    for _ in range(3):
        bits = (bits ^ (bits >> 15)) * 2246822519 & 0xFFFFFFFF
    return bits >= int(p * 2**32)


def reference(x, p, seed):
    """Elements are dropped with probability ``p``, the others scaled by 1 / (1 - p)."""
    return torch.where(kept(x.shape, p, seed, x.device), x * (1 / (1 - p) if p < 1 else 0), 0)


def backward(grad_y, p, seed):
    first = grad_y.numel()  # wrong: where the forward ended, not where it began
    mask = kept(grad_y.shape, p, seed, grad_y.device, first)
    return torch.where(mask, grad_y * (1 / (1 - p) if p < 1 else 0), 0)


def validate(x, p, seed):
    if not 0 <= p <= 1:
        raise ValueError(f"p must be from 0 to 1, got {p}")


def cases(make):
    for shape, p in [((7,), 0.5), ((33, 65), 0.1), ((2, 3, 17), 0.9), ((1000,), 0.5)]:
        yield make(*shape), p, 17


op = Op(
    namespace="wrong_ops",
    schema="dropout_masks_differ(Tensor x, float p, int seed) -> Tensor y",
    reference=reference,
    backward=backward,
    validate=validate,
    cases=cases,
)
