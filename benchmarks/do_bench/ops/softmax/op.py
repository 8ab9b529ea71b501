# SPDX-License-Identifier: Apache-2.0
"""softmax: y = exp(x) / sum(exp(x)) over the last dim. No kernel yet: a yardstick."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from opforge.op import Make, Op


def reference(x: Tensor) -> Tensor:
    """PyTorch's own, over the last dim."""
    return torch.softmax(x, -1)


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Columns around the vector width, one row, no row, three dims, rows apart."""
    for shape in [(1, 1), (0, 8), (7, 31), (64, 256), (5, 1025), (2, 3, 128)]:
        yield (make(*shape),)
    yield (make(16, 64)[::2],)


def liger() -> Callable[..., Tensor]:
    """Liger's Triton kernels."""
    # Straight from its module: the package may swap in another backend.
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return lambda x: LigerSoftmaxFunction.apply(x)


def quack() -> Callable[..., Tensor]:
    """Quack's CuTe DSL kernels; they take two dims, of float32, float16 or bfloat16."""
    from quack.softmax import softmax

    return lambda x: softmax(x.reshape(-1, x.shape[-1])).reshape(x.shape)


op = Op(
    schema="softmax(Tensor x) -> Tensor y",
    reference=reference,
    cases=cases,
    # Maximum, minus it, exp, add, times 1 / sum.
    operations=lambda x: 5 * x.numel(),
    sized=lambda make, rows, cols: (make(rows, cols),),
    peers={"liger": liger, "quack": quack},
    rowwise=True,
)
