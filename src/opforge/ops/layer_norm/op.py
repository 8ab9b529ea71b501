# SPDX-License-Identifier: Apache-2.0
"""layer_norm: y = (h - mean(h)) / sqrt(var(h) + eps) * weight + bias over the last dim.

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
    "eps": 1e-5,
    "before": 0,
    "after": 0,
    "p": 0.0,
    "save": True,
}


def reference(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    seed: Tensor | None,
    eps: float,
    before: int,
    after: int,
    p: float,
    save: bool,
) -> tuple[Tensor, Tensor]:
    """The normalised rows, and the sum with the residual if there is one."""
    h = norms.apply_stage(x, before, norms.part(seed, 0), p)
    if residual is not None:
        h = h + residual
    if x.shape[-1] == 0:
        y = h * 1
    elif all(param is None or param.dtype == x.dtype for param in (weight, bias)):
        y = torch.nn.functional.layer_norm(h, h.shape[-1:], weight, bias, eps)
    else:
        v = norms.wide(h)
        w, b = (None if param is None else param.to(v.dtype) for param in (weight, bias))
        y = torch.nn.functional.layer_norm(v, v.shape[-1:], w, b, eps).to(x.dtype)
    y = norms.apply_stage(y, after, norms.part(seed, 1), p)
    return y, norms.no_tensor(x) if residual is None else h


def mean(
    x: Tensor, residual: Tensor | None, seed: Tensor | None, before: int, p: float, save: bool
) -> Tensor:
    """The mean of each row."""
    h = norms.sum_before(x, residual, seed, before, p)
    return h.mean(-1) if save else norms.no_tensor(h)


def rstd(
    x: Tensor,
    residual: Tensor | None,
    seed: Tensor | None,
    eps: float,
    before: int,
    p: float,
    save: bool,
) -> Tensor:
    """1 / sqrt(var + eps) of each row."""
    h = norms.sum_before(x, residual, seed, before, p)
    return torch.rsqrt(h.var(-1, correction=0) + eps) if save else norms.no_tensor(h)


def backward_reference(
    grad_y: Tensor,
    grad_h: Tensor | None,
    x: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    residual_shape: list[int] | None,
    h: Tensor,
    mean: Tensor,
    rstd: Tensor,
    seed: Tensor | None,
    eps: float,
    before: int,
    after: int,
    p: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradient through ``after``, the norm, the sum and ``before``, in the computing dtype."""
    if residual_shape is None:
        assert x is not None
        h = norms.apply_stage(x, before, norms.part(seed, 0), p)
    v, grad = norms.wide(h), norms.wide(grad_y)
    v = v - v.mean(-1, keepdim=True)
    factor = torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)
    normed = v * factor
    scale = 1.0 if weight is None else weight.to(v.dtype)
    shift = 0.0 if bias is None else bias.to(v.dtype)
    grad = norms.stage_backward(grad, normed * scale + shift, after, norms.part(seed, 1), p)
    grad_weight = grad_bias = norms.no_tensor(h)
    if weight is not None:
        grad_weight = norms.sum_of_rows(grad * normed).to(weight.dtype)
    if bias is not None:
        grad_bias = norms.sum_of_rows(grad).to(bias.dtype)
    grad = grad * scale
    inner = (grad * normed).mean(-1, keepdim=True)
    grad = (grad - grad.mean(-1, keepdim=True) - normed * inner) * factor
    grad_x, grad_residual = norms.through_sum(
        grad, grad_h, v if x is None else x, residual_shape, seed, before, p, grad_y.dtype
    )
    return grad_x, grad_weight, grad_bias, grad_residual


def validate(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    seed: Tensor | None,
    eps: float,
    before: int,
    after: int,
    p: float,
) -> None:
    """weight and bias have one value per column, in any dtype; residual is like x."""
    params = {"weight": weight, "bias": bias}
    norms.validate("layer_norm", x, params, residual, seed, eps, before, after, p)


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """The cases of norms.py, with and without parameters, and parameters in another dtype."""
    for i, (x, residual, given) in enumerate(norms.cases(make)):
        given.pop("offset", None)
        weight = None if i % 4 == 3 else make(x.shape[-1])
        bias = None if i % 4 >= 2 else make(x.shape[-1])
        yield _arguments(x, weight, bias, residual, **given)
    yield _arguments(make(6, 72), make(72).float(), make(72))


def _arguments(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None = None,
    **given: Any,
) -> tuple[Any, ...]:
    return x, weight, bias, residual, *({**_DEFAULTS, **given}.values())


def sized(make: Any, *shape: int) -> dict[str, tuple[Any, ...]]:
    """The plain norm, and with a residual, a relu or a dropout as in networks."""
    params = make(shape[-1]), make(shape[-1])
    seed = torch.tensor([17, 18], device=make.device)
    relu, dropout = int(norms.Stage.RELU), int(norms.Stage.DROPOUT)
    return {
        "plain": _arguments(make(*shape), *params),
        "residual": _arguments(make(*shape), *params, make(*shape)),
        "relu": _arguments(make(*shape), *params, before=relu),
        "relu, dropout": _arguments(
            make(*shape), *params, seed=seed, before=relu, after=dropout, p=0.1
        ),
    }


def liger() -> Callable[..., Any]:
    """Liger's Triton kernels."""
    # Imported from its module, because the package may replace it by another backend.
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    def run(
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        residual: Tensor | None,
        eps: float,
        before: int,
        after: int,
    ) -> Any:
        if max(before, after) >= norms.Stage.DROPOUT:
            raise NotImplementedError("Liger's layer_norm has no dropout")
        v = torch.relu(x) if before else x
        h = v if residual is None else v + residual
        y = LigerLayerNormFunction.apply(h, weight, bias, eps)
        return y, norms.no_tensor(x) if residual is None else h

    return run


def quack() -> Callable[..., Any]:
    """Quack's CuTe DSL kernels. They need float32 weights, so others are converted."""
    from quack.rmsnorm import layernorm_bwd, layernorm_fwd

    class Quack(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Any:
            wide = weight.float(), bias.float()
            y, rstd, mean = layernorm_fwd(x, *wide, eps, return_rstd=True, return_mean=True)
            ctx.save_for_backward(x, weight, rstd, mean)
            return y

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            x, weight, rstd, mean = ctx.saved_tensors
            return *layernorm_bwd(x, weight, grad, rstd, mean), None

    def run(
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        residual: Tensor | None,
        eps: float,
        before: int,
        after: int,
    ) -> Any:
        if residual is not None or before or after:
            raise NotImplementedError("quack's layer_norm has no residual, relu or dropout")
        return Quack.apply(x, weight, bias, eps), norms.no_tensor(x)

    return run


op = Op(
    schema="layer_norm(Tensor x, Tensor? weight, Tensor? bias, Tensor? residual, Tensor? seed, "
    "float eps, int before, int after, float p, bool save) "
    "-> (Tensor y, Tensor h, Tensor mean, Tensor rstd)",
    reference=reference,
    statistics={"mean": mean, "rstd": rstd},
    backward=Backward(
        "layer_norm_backward(Tensor grad_y, Tensor? grad_h, Tensor? x, Tensor? weight, "
        "Tensor? bias, int[]? residual_shape, Tensor h, Tensor mean, Tensor rstd, Tensor? seed, "
        "float eps, int before, int after, float p) "
        "-> (Tensor grad_x, Tensor grad_weight, Tensor grad_bias, Tensor grad_residual)",
        backward_reference,
        unsaved=norms.unsaved,
        shared={"residual": "grad_x"},
    ),
    own_dtypes={"seed": (torch.int64,)},
    validate=validate,
    cases=cases,
    # Add, subtract, square, add, times 1 / std, times weight, plus bias.
    operations=lambda x: 7 * x.numel(),
    sized=sized,
    peers={"liger": liger, "quack": quack},
    rowwise=True,
    module=lambda x, weight, bias, eps: opforge.nn.LayerNorm(
        x.shape[-1], eps, weight is not None, bias is not None
    ),
    build=Build(by_dtype=["cuda"]),
)


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    eps: float = 1e-5,
    relu: norms.Where = None,
    dropout: norms.Where = None,
    p: float = 0.0,
    save: bool = True,
) -> Tensor | tuple[Tensor, Tensor]:
    """``(h - mean(h)) / sqrt(var(h) + eps) * weight + bias`` over the last dim, with ``h = x``.

    It is computed in float32 (float64 for float64) and returned in the dtype of ``x``. This also
    holds under autocast, where PyTorch's result is float32.

    Args:
        x: any shape; rows are along the last dim.
        weight: one value per column, in any dtype; None means ones.
        bias: one value per column, in any dtype; None means zeros.
        residual: is added to ``x`` first. The result is then ``(y, h)``, where h is the sum.
        eps: is added to the variance; positive.
        relu: applied "before" the norm (and the sum) or "after" it.
        dropout: applied "before" or "after", with probability ``p``, after the relu.
        p: the probability of dropping an element, rounded as by ``opforge.dropout``. Pass 0.0 for
            evaluation.
        save: save the mean and 1 / std of each row for the backward, which otherwise computes
            them again.
    """
    before, after = norms.codes(relu, dropout)
    seed = norms.draw_seeds(x, dropout)
    y, h = op(x, weight, bias, residual, seed, eps, before, after, p, save)
    return y if residual is None else (y, h)
