# SPDX-License-Identifier: Apache-2.0
"""linear_bias_relu: y = relu(x @ weight.T + bias). No kernel yet: a yardstick."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from opforge.op import Make, Op


def reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A linear layer and its activation."""
    return torch.relu(torch.nn.functional.linear(x, weight, bias))


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Sizes off and on the tile, one of everything, no row."""
    for m, n, k in [(1, 1, 1), (0, 8, 4), (7, 5, 3), (33, 17, 65), (64, 128, 32)]:
        yield make(m, k), make(n, k), make(n)


def sized(make: Make, m: int, n: int, k: int) -> tuple[Any, ...]:
    """m rows of k inputs each, n outputs."""
    return make(m, k), make(n, k), make(n)


def cublaslt() -> Callable[..., Tensor]:
    """The library's product with bias and relu in its epilogue; torch gives it no gradient."""
    return lambda x, weight, bias: torch._addmm_activation(bias, x, weight.t(), use_gelu=False)


op = Op(
    schema="linear_bias_relu(Tensor x, Tensor weight, Tensor bias) -> Tensor y",
    reference=reference,
    cases=cases,
    operations=lambda x, weight: 2 * x.shape[0] * weight.numel(),
    sized=sized,
    peers={"cuBLASLt": cublaslt},
    product=lambda x, weight: (x, weight.t()),
)
