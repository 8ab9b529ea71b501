# SPDX-License-Identifier: Apache-2.0
"""rms_norm: y = h / sqrt(mean(h²) + eps) * weight over the last dim.

See ops/families/norms.py for the relu, dropout and residual around the norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import opforge
from opforge.op import Backward, Build, Make, Op
from opforge.ops.families import norms

_DEFAULTS = {
    "seed": None,
    "eps": 1e-6,
    "offset": 0.0,
    "before": 0,
    "after": 0,
    "p": 0.0,
    "save": True,
}


def reference(
    x: Tensor,
    weight: Tensor | None,
    residual: Tensor | None,
    seed: Tensor | None,
    eps: float,
    offset: float,
    before: int,
    after: int,
    p: float,
    save: bool,
) -> tuple[Tensor, Tensor]:
    """The normalised rows, and the sum with the residual if there is one."""
    h = norms.apply_stage(x, before, norms.part(seed, 0), p)
    if residual is not None:
        h = h + residual
    # float64 is the truth and uses the formula, because PyTorch's GPU kernel turns a row with
    # an infinity into NaN. (So `opforge bench` also times the formula as eager in float64.)
    alike = weight is None or weight.dtype == x.dtype
    if offset == 0 and alike and x.shape[-1] > 0 and x.dtype != torch.float64:
        y = torch.nn.functional.rms_norm(h, h.shape[-1:], weight, eps)
    else:
        v = norms.wide(h)
        v = v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)
        y = (v if weight is None else v * (weight.to(v.dtype) + offset)).to(x.dtype)
    y = norms.apply_stage(y, after, norms.part(seed, 1), p)
    return y, norms.no_tensor(x) if residual is None else h


def rstd(
    x: Tensor,
    residual: Tensor | None,
    seed: Tensor | None,
    eps: float,
    before: int,
    p: float,
    save: bool,
) -> Tensor:
    """1 / sqrt(mean(h²) + eps) of each row."""
    h = norms.sum_before(x, residual, seed, before, p)
    return torch.rsqrt(h.square().mean(-1) + eps) if save else norms.no_tensor(h)


def backward_reference(
    grad_y: Tensor,
    grad_h: Tensor | None,
    x: Tensor | None,
    weight: Tensor | None,
    residual_shape: list[int] | None,
    h: Tensor,
    rstd: Tensor,
    seed: Tensor | None,
    eps: float,
    offset: float,
    before: int,
    after: int,
    p: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient through ``after``, the norm, the sum and ``before``, in the computing dtype."""
    if residual_shape is None:
        assert x is not None
        h = norms.apply_stage(x, before, norms.part(seed, 0), p)
    v, grad = norms.wide(h), norms.wide(grad_y)
    factor = torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)
    normed = v * factor
    scale = 1.0 if weight is None else weight.to(v.dtype) + offset
    grad = norms.stage_backward(grad, normed * scale, after, norms.part(seed, 1), p)
    grad_weight = norms.no_tensor(h)
    if weight is not None:
        grad_weight = norms.sum_of_rows(grad * normed).to(weight.dtype)
    grad = grad * scale
    inner = (grad * normed).mean(-1, keepdim=True)
    grad = (grad - normed * inner) * factor
    grad_x, grad_residual = norms.through_sum(
        grad, grad_h, v if x is None else x, residual_shape, seed, before, p, grad_y.dtype
    )
    return grad_x, grad_weight, grad_residual


def validate(
    x: Tensor,
    weight: Tensor | None,
    residual: Tensor | None,
    seed: Tensor | None,
    eps: float,
    before: int,
    after: int,
    p: float,
) -> None:
    """weight has one value per column, in any dtype; residual is like x."""
    params = {"weight": weight}
    norms.validate("rms_norm", x, params, residual, seed, eps, before, after, p)


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """The cases of norms.py, with and without weights, and a weight in another dtype."""
    for i, (x, residual, given) in enumerate(norms.cases(make)):
        weight = None if i % 4 == 3 else make(x.shape[-1])
        yield _arguments(x, weight, residual, **given)
    yield _arguments(make(6, 72), make(72).float())


def _arguments(
    x: Tensor, weight: Tensor | None, residual: Tensor | None = None, **given: Any
) -> tuple[Any, ...]:
    return x, weight, residual, *({**_DEFAULTS, **given}.values())


def liger() -> Callable[..., Any]:
    """Liger's Triton kernels. Like Llama, they round x / rms(x) to the dtype before the weight."""
    # Imported from its module, because the package may replace it by another backend.
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    def run(x: Tensor, weight: Tensor | None, residual: Tensor | None, eps: float) -> Any:
        # offset, casting mode, in_place, whose default writes the gradient of x over that of y.
        if residual is None:
            y = LigerRMSNormFunction.apply(x, weight, eps, 0.0, "llama", False)
            return y, norms.no_tensor(x)
        return LigerFusedAddRMSNormFunction.apply(x, residual, weight, eps, 0.0, "llama", False)

    return run


def quack() -> Callable[..., Any]:
    """Quack's CuTe DSL kernels; x and weight may each be float32, float16 or bfloat16."""
    from quack.rmsnorm import rmsnorm

    def run(x: Tensor, weight: Tensor | None, residual: Tensor | None, eps: float) -> Any:
        if residual is None:
            return rmsnorm(x, weight, eps=eps), norms.no_tensor(x)
        return rmsnorm(x, weight, residual=residual, eps=eps, prenorm=True)

    return run


op = Op(
    schema="rms_norm(Tensor x, Tensor? weight, Tensor? residual, Tensor? seed, float eps, "
    "float offset, int before, int after, float p, bool save) "
    "-> (Tensor y, Tensor h, Tensor rstd)",
    reference=reference,
    statistics={"rstd": rstd},
    backward=Backward(
        "rms_norm_backward(Tensor grad_y, Tensor? grad_h, Tensor? x, Tensor? weight, "
        "int[]? residual_shape, Tensor h, Tensor rstd, Tensor? seed, float eps, float offset, "
        "int before, int after, float p) "
        "-> (Tensor grad_x, Tensor grad_weight, Tensor grad_residual)",
        backward_reference,
        unsaved=norms.unsaved,
        shared={"residual": "grad_x"},
    ),
    own_dtypes={"seed": (torch.int64,)},
    validate=validate,
    cases=cases,
    # Square, add, times 1 / rms, times weight.
    operations=lambda x: 4 * x.numel(),
    sized=lambda make, *shape: {
        "plain": _arguments(make(*shape), make(shape[-1])),
        "residual": _arguments(make(*shape), make(shape[-1]), make(*shape)),
    },
    peers={"liger": liger, "quack": quack},
    rowwise=True,
    module=lambda x, weight, eps, offset: opforge.nn.RMSNorm(
        x.shape[-1], eps, weight is not None, offset=offset
    ),
    build=Build(by_dtype=["cuda"]),
)


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    relu: norms.Where = None,
    dropout: norms.Where = None,
    p: float = 0.0,
    save: bool = True,
) -> Tensor | tuple[Tensor, Tensor]:
    """``h / sqrt(mean(h²) + eps) * (weight + offset)`` over the last dim, with ``h = x``.

    Args:
        x: any shape; rows are along the last dim.
        weight: one value per column, in any dtype; None means ones.
        residual: is added to ``x`` first. The result is then ``(y, h)``, where h is the sum.
        eps: is added to the mean square; positive (PyTorch's default depends on the dtype).
        offset: is added to the weight; 1.0 for weights stored as in Gemma.
        relu: applied "before" the norm (and the sum) or "after" it.
        dropout: applied "before" or "after", with probability ``p``, after the relu.
        p: the probability of dropping an element, rounded as by ``opforge.dropout``. Pass 0.0 for
            evaluation.
        save: save 1 / rms of each row for the backward, which otherwise computes it again.
    """
    before, after = norms.codes(relu, dropout)
    seed = norms.draw_seeds(x, dropout)
    y, h = op(x, weight, residual, seed, eps, offset, before, after, p, save)
    return y if residual is None else (y, h)
