# SPDX-License-Identifier: Apache-2.0
"""rms_norm: y = x / sqrt(mean(x²) + eps) * weight over the last dim. No kernel yet: a yardstick."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from opforge.op import Make, Op


def reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """PyTorch's own, over the last dim."""
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Columns around the vector width, one row, no row, three dims, rows apart."""
    for shape in [(1, 1), (0, 8), (7, 31), (64, 256), (5, 1025), (2, 3, 128)]:
        yield make(*shape), make(shape[-1]), 1e-6
    yield make(16, 64)[::2], make(64), 1e-5


def liger() -> Callable[..., Tensor]:
    """Liger's Triton kernels. Like Llama, they round x / rms(x) to the dtype before the weight."""
    # Straight from its module: the package may swap in another backend.
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    def run(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        # offset, casting mode, in_place: its default writes the gradient of x over that of y.
        return LigerRMSNormFunction.apply(x, weight, eps, 0.0, "llama", False)

    return run


def quack() -> Callable[..., Tensor]:
    """Quack's CuTe DSL kernels; x and weight may each be float32, float16 or bfloat16."""
    from quack.rmsnorm import rmsnorm

    return lambda x, weight, eps: rmsnorm(x, weight, eps=eps)


op = Op(
    schema="rms_norm(Tensor x, Tensor weight, float eps) -> Tensor y",
    reference=reference,
    cases=cases,
    # Square, add, times 1 / rms, times weight.
    operations=lambda x: 4 * x.numel(),
    sized=lambda make, rows, cols: (make(rows, cols), make(cols), 1e-6),
    peers={"liger": liger, "quack": quack},
    rowwise=True,
)
