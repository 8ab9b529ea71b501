# SPDX-License-Identifier: Apache-2.0
"""log_softmax over the last dim, with the scale and the mask that attention has.

See ops/families/softmaxes.py for what comes before the softmax.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

import opforge
from opforge.op import Backward, Op
from opforge.ops.families import softmaxes


def reference(x: Tensor, mask: Tensor | None, scale: float, causal: bool) -> Tensor:
    """As torch's; but rows that are covered by a mask stay -inf and do not become NaN."""
    v = softmaxes.values(x, mask, scale, causal)
    if mask is None and not causal:
        return torch.log_softmax(v, -1)
    covered = softmaxes.covered(v)
    y = torch.where(covered, v, torch.log_softmax(v.masked_fill(covered, 0), -1))
    return y.masked_fill(softmaxes.hidden(x), float("-inf")) if causal else y


@softmaxes.in_full
def backward_reference(grad: Tensor, y: Tensor) -> Tensor:
    """Given the result, x is not needed."""
    return grad - y.exp() * grad.sum(-1, keepdim=True)


op = Op(
    schema="log_softmax" + softmaxes.SCHEMA,
    reference=reference,
    backward=Backward("log_softmax_backward" + softmaxes.BACKWARD_SCHEMA, backward_reference),
    validate=functools.partial(softmaxes.validate, "log_softmax"),
    cases=softmaxes.cases,
    # Scale, largest, subtract, exp, add, subtract.
    operations=lambda x: 6 * x.numel(),
    sized=softmaxes.sized,
    rowwise=True,
    module=lambda scale, causal: opforge.nn.LogSoftmax(-1, scale=scale, causal=causal),
)


def log_softmax(
    x: Tensor, mask: Tensor | None = None, *, scale: float = 1.0, causal: bool = False
) -> Tensor:
    """``log_softmax(x * scale + mask)`` over the last dim, computed in float32 and rounded once.

    A row that a mask or ``causal`` leaves nothing of (all -inf) stays -inf, where torch has NaN.
    Without either, NaN and infinities act as in torch.

    The dtype is that of ``x``, under autocast, too, where PyTorch's is float32.

    Args:
        x: any shape; rows lie along the last dim.
        mask: added; broadcasts to ``x``, in any floating point dtype, may hold -inf; no gradient.
        scale: a factor of ``x``.
        causal: the last two dims are queries and keys, and query i sees the keys up to
            ``i + keys - queries``.
    """
    softmaxes.check_mask("log_softmax", mask)
    y: Tensor = op(x, mask, scale, causal)
    return y
