# SPDX-License-Identifier: Apache-2.0
"""log_softmax over the last dim, with the scale and the masks of attention.

See ops/families/softmaxes.py for scale and masks.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

import opforge
from opforge.op import Backward, Build, Op
from opforge.ops.families import softmaxes


def reference(x: Tensor, mask: Tensor | None, scale: float, causal: bool) -> Tensor:
    """torch's log_softmax, except that fully masked rows stay -inf and do not become NaN."""
    v = softmaxes.values(x, mask, scale, causal)
    if mask is None and not causal:
        return torch.log_softmax(v, -1)
    covered = softmaxes.covered(v)
    y = torch.where(covered, v, torch.log_softmax(v.masked_fill(covered, 0), -1))
    return y.masked_fill(softmaxes.hidden(x), float("-inf")) if causal else y


@softmaxes.in_full
def backward_reference(grad: Tensor, y: Tensor) -> Tensor:
    """The gradient from the result, without x."""
    return grad - y.exp() * grad.sum(-1, keepdim=True)


op = Op(
    schema="log_softmax" + softmaxes.SCHEMA,
    reference=reference,
    backward=Backward("log_softmax_backward" + softmaxes.BACKWARD_SCHEMA, backward_reference),
    validate=functools.partial(softmaxes.validate, "log_softmax"),
    cases=softmaxes.cases,
    # Scale, maximum, subtract, exp, add, subtract.
    operations=lambda x: 6 * x.numel(),
    sized=softmaxes.sized,
    rowwise=True,
    module=lambda scale, causal: opforge.nn.LogSoftmax(-1, scale=scale, causal=causal),
    build=Build(by_dtype=["cuda"]),
)


def log_softmax(
    x: Tensor, mask: Tensor | None = None, *, scale: float = 1.0, causal: bool = False
) -> Tensor:
    """``log_softmax(x * scale + mask)`` over the last dim, computed in float32 and rounded once.

    A row that is fully masked (all -inf) by a mask or ``causal`` stays -inf, where torch gives NaN.
    Without either, NaN and infinities behave as in torch.

    The result has the dtype of ``x``. This also holds under autocast, where PyTorch's is float32.

    Args:
        x: any shape; rows are along the last dim.
        mask: is added; broadcasts to ``x``, has any floating point dtype, may contain -inf, and
            gets no gradient.
        scale: a factor of ``x``.
        causal: the last two dims are queries and keys, and query i sees the keys up to
            ``i + keys - queries``.
    """
    softmaxes.check_mask("log_softmax", mask)
    y: Tensor = op(x, mask, scale, causal)
    return y
