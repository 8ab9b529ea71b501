# SPDX-License-Identifier: Apache-2.0
"""softmax over the last dim, with the scale and the masks of attention.

See ops/families/softmaxes.py for scale and masks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import opforge
from opforge.op import Backward, Build, Op
from opforge.ops.families import softmaxes


def reference(x: Tensor, mask: Tensor | None, scale: float, causal: bool) -> Tensor:
    """torch's softmax, except that fully masked rows are zeros, not NaN."""
    v = softmaxes.values(x, mask, scale, causal)
    if mask is None and not causal:
        return torch.softmax(v, -1)
    covered = softmaxes.covered(v)
    y = torch.softmax(v.masked_fill(covered, 0), -1).masked_fill(covered, 0)
    return y.masked_fill(softmaxes.hidden(x), 0) if causal else y


@softmaxes.in_full
def backward_reference(grad: Tensor, y: Tensor) -> Tensor:
    """The gradient from the result, without x."""
    return y * (grad - (grad * y).sum(-1, keepdim=True))


def liger() -> Callable[..., Any]:
    """Liger's Triton kernels."""
    # Imported from its module, because the package may replace it by another backend.
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return softmaxes.only_plain(LigerSoftmaxFunction.apply, "Liger's softmax")


def quack() -> Callable[..., Any]:
    """Quack's CuTe DSL kernels: matrices of float32, float16 or bfloat16."""
    from quack.softmax import softmax

    return softmaxes.only_plain(softmax, "quack's softmax")


op = Op(
    schema="softmax" + softmaxes.SCHEMA,
    reference=reference,
    backward=Backward("softmax_backward" + softmaxes.BACKWARD_SCHEMA, backward_reference),
    validate=functools.partial(softmaxes.validate, "softmax"),
    cases=softmaxes.cases,
    # Scale, maximum, subtract, exp, add, divide.
    operations=lambda x: 6 * x.numel(),
    sized=softmaxes.sized,
    peers={"liger": liger, "quack": quack},
    rowwise=True,
    module=lambda scale, causal: opforge.nn.Softmax(-1, scale=scale, causal=causal),
    build=Build(by_dtype=["cuda"]),
)


def softmax(
    x: Tensor, mask: Tensor | None = None, *, scale: float = 1.0, causal: bool = False
) -> Tensor:
    """``softmax(x * scale + mask)`` over the last dim, computed in float32 and rounded once.

    A row that is fully masked (all -inf) by a mask or ``causal`` becomes zeros, where torch gives
    NaN, because a query without keys should contribute nothing. Without either, NaN and infinities
    behave as in torch.

    The result has the dtype of ``x``. This also holds under autocast, where PyTorch's is float32.

    Args:
        x: any shape; rows are along the last dim.
        mask: is added; broadcasts to ``x``, has any floating point dtype, may contain -inf, and
            gets no gradient.
        scale: a factor of ``x``.
        causal: the last two dims are queries and keys, and query i sees the keys up to
            ``i + keys - queries``.
    """
    softmaxes.check_mask("softmax", mask)
    y: Tensor = op(x, mask, scale, causal)
    return y
