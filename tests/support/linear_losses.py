# SPDX-License-Identifier: Apache-2.0
"""What the tests of linear_cross_entropy have in common: arguments, and torch in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import opforge

each_reduction = pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
each_choice = pytest.mark.parametrize("low_memory", [False, True])


def drawn(device, rows, features, classes, dtype=torch.float32, ignored=0.25, bias=True):
    """Input, weight and bias that want gradients, and labels, some of them -100."""
    generator = torch.Generator().manual_seed(5)
    shapes = [(rows, features), (classes, features), (classes,)][: 3 if bias else 2]
    leaves = [torch.randn(s, generator=generator) / features**0.5 for s in shapes]
    target = torch.randint(0, classes, (rows,), generator=generator)
    target[torch.rand(rows, generator=generator) < ignored] = -100
    return [x.to(device, dtype).requires_grad_() for x in leaves], target.to(device)


def truth(leaves, target, *, reduction="mean", z_loss=0.0, ignore_index=-100, label_smoothing=0.0):
    """torch's loss in float64, of all logits, with the z-loss written out."""
    logits = functional.linear(*[x.double() for x in leaves])
    losses = functional.cross_entropy(
        logits,
        target,
        reduction="none",
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )
    kept = target != ignore_index
    losses = losses + kept * z_loss * logits.logsumexp(-1).square()
    if reduction == "none":
        return losses
    return losses.sum() / kept.sum() if reduction == "mean" else losses.sum()


def ours(leaves, target, **options):
    return opforge.linear_cross_entropy(*leaves[:2], target, *leaves[2:], **options)


def agree(leaves, target, chunk=0, low_memory=False, **options):
    """Loss and gradients; 16-bit logits and gradients are rounded on the way."""
    got = ours(leaves, target, chunk=chunk, low_memory=low_memory, **options)
    right = truth(leaves, target, **options)
    loose = {torch.float16: 4e-3, torch.bfloat16: 3e-2}.get(leaves[0].dtype, 1e-5)
    assert got.dtype == (torch.float64 if leaves[0].dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(got.double(), right, atol=loose, rtol=loose)
    factors = torch.linspace(-1, 2, got.numel(), dtype=torch.float64).reshape(got.shape).to(right)
    found = torch.autograd.grad(got, leaves, factors.to(got.dtype))
    expected = torch.autograd.grad(right, leaves, factors)
    for f, e, x in zip(found, expected, leaves, strict=True):
        assert f.dtype == x.dtype
        size = float(e.abs().max())
        torch.testing.assert_close(f, e, atol=loose * max(size, 1e-3), rtol=loose)
    return found
