# SPDX-License-Identifier: Apache-2.0
"""group_norm: normalises each group of channels of each sample, scales, shifts; optional silu.

    z = (x - mean) / sqrt(var + eps) * weight + bias        y = z, or z * sigmoid(z)

Mean and variance are over a group's channels and all pixels. Images may be in NCHW or NHWC
(channels_last) layout, and the result has the layout of x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import opforge
from opforge.op import Backward, Build, Make, Op
from opforge.ops.families import norms


def reference(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    groups: int,
    eps: float,
    silu: bool,
    save: bool,
) -> Tensor:
    """PyTorch's group_norm and silu, or the formula where PyTorch's norm cannot be used."""
    params = [param for param in (weight, bias) if param is not None]
    if x.numel() == 0:
        z = x * 1
    elif (
        # float64 is the truth. PyTorch subtracts weight * mean from weight * x, which gives NaN
        # for an infinite weight, and its gradient is inexact if the spread is small.
        x.dtype == torch.float64
        or any(param.dtype != x.dtype for param in params)
        or (weight is None and bias is not None)  # PyTorch has no backward for it
    ):
        away = norms.wide(x).reshape(x.shape[0], groups, -1)
        away = away - away.mean(-1, keepdim=True)
        z = away * torch.rsqrt(away.square().mean(-1, keepdim=True) + eps)
        z = z.reshape(x.shape)
        per_channel = (-1, *[1] * (x.dim() - 2))
        if weight is not None:
            z = z * weight.to(z.dtype).reshape(per_channel)
        if bias is not None:
            z = z + bias.to(z.dtype).reshape(per_channel)
        z = z.to(x.dtype)
    else:
        z = torch.nn.functional.group_norm(x, groups, weight, bias, eps)
    return torch.nn.functional.silu(z) if silu else z


def _in_groups(x: Tensor, groups: int) -> Tensor:
    """One row per sample and group, in the dtype that kernels compute in."""
    return norms.wide(x.detach()).reshape(x.shape[0], groups, -1)


def mean(x: Tensor, groups: int, save: bool) -> Tensor:
    """The mean of each group."""
    if not save or x.numel() == 0:
        return norms.no_tensor(norms.wide(x.detach()))
    return _in_groups(x, groups).mean(-1)


def rstd(x: Tensor, groups: int, eps: float, save: bool) -> Tensor:
    """1 / sqrt(var + eps) of each group."""
    if not save or x.numel() == 0:
        return norms.no_tensor(norms.wide(x.detach()))
    return torch.rsqrt(_in_groups(x, groups).var(-1, correction=0) + eps)


def backward_reference(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    groups: int,
    eps: float,
    silu: bool,
    mean: Tensor,
    rstd: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient through the silu and the norm, in the dtype that kernels compute in."""
    none = norms.no_tensor(x)
    if x.numel() == 0:
        params = [none if p is None else p.new_zeros(p.shape) for p in (weight, bias)]
        return x.new_empty(x.shape), *params  # type: ignore[return-value]
    samples, channels = x.shape[:2]
    grouped = (samples, groups, channels // groups, -1)
    v, grad = norms.wide(x).reshape(grouped), norms.wide(grad_y).reshape(grouped)
    v = v - v.mean((2, 3), keepdim=True)
    factor = torch.rsqrt(v.square().mean((2, 3), keepdim=True) + eps)
    normed = v * factor
    per_channel = (1, groups, channels // groups, 1)
    scale = 1.0 if weight is None else weight.to(v.dtype).reshape(per_channel)
    shift = 0.0 if bias is None else bias.to(v.dtype).reshape(per_channel)
    if silu:
        z = normed * scale + shift
        sigmoid = torch.sigmoid(z)
        grad = grad * (sigmoid * (1 + z * (1 - sigmoid)))
    grad_weight = grad_bias = none
    if weight is not None:
        grad_weight = (grad * normed).sum((0, 3)).reshape(-1).to(weight.dtype)
    if bias is not None:
        grad_bias = grad.sum((0, 3)).reshape(-1).to(bias.dtype)
    grad = grad * scale
    inner = (grad * normed).mean((2, 3), keepdim=True)
    grad = (grad - grad.mean((2, 3), keepdim=True) - normed * inner) * factor
    return grad.reshape(x.shape).to(x.dtype), grad_weight, grad_bias


def validate(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float
) -> None:
    """weight and bias have one value per channel, in any dtype; groups divides the channels."""
    if x.dim() < 2:
        raise ValueError(
            "opforge.group_norm: x must have at least two dims, samples and channels; "
            f"got shape {tuple(x.shape)}"
        )
    channels = x.shape[1]
    for name, param in (("weight", weight), ("bias", bias)):
        if param is not None and param.shape != (channels,):
            raise ValueError(
                f"opforge.group_norm: {name} must have shape ({channels},), one value per channel "
                f"of x, which has shape {tuple(x.shape)}; got {tuple(param.shape)}"
            )
    if groups < 1 or channels % groups:
        raise ValueError(
            f"opforge.group_norm: groups must divide the channels, {channels} for x of shape "
            f"{tuple(x.shape)}; got {groups}"
        )
    if not 0 < eps < math.inf:
        raise ValueError(f"opforge.group_norm: eps must be positive and finite, got {eps}")


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Both layouts; groups of one channel, of all channels, of long and odd planes; empty."""
    for shape, groups in [
        ((2, 12), 3),
        ((3, 8, 7), 2),
        ((2, 6, 3, 5), 6),
        ((1, 8, 4, 4), 1),
        ((2, 12, 16, 16), 4),
        ((1, 2, 40, 52), 1),
        ((0, 4, 3), 2),
        ((2, 4, 0), 2),
    ]:
        for silu in (False, True):
            yield make(*shape), make(shape[1]), make(shape[1]), groups, 1e-5, silu, True
    x = make(2, 24, 5, 9).contiguous(memory_format=torch.channels_last)
    yield x, make(24), make(24), 4, 1e-5, True, True
    yield x, make(24), None, 24, 1e-5, False, True
    x = make(3, 10, 6, 7).contiguous(memory_format=torch.channels_last)  # no whole vectors
    yield x, make(10).float(), make(10), 2, 1e-5, True, False
    yield make(2, 6, 4, 8), None, make(6), 2, 1e-3, True, False
    yield make(2, 6, 4, 8), None, None, 3, 1e-5, False, True
    yield make(2, 12, 4, 8)[:, ::2], make(6), make(6), 2, 1e-5, True, True
    yield make(4, 33)[:, 1:], make(32), make(32), 4, 1e-5, True, True
    yield make(2, 6, 4, 9).transpose(2, 3), make(6), make(6), 3, 1e-5, False, True


def _sized(make: Make, *shape: int) -> dict[str, tuple[Any, ...]]:
    """rows x cols: ``rows`` groups, 32 per sample, of ``cols`` elements in four channels each."""
    if len(shape) == 2:
        shape = (max(1, shape[0] // 32), 128, max(1, shape[1] // 4), 1)
    x, rest = make(*shape), (32 if shape[1] % 32 == 0 else 1, 1e-5, True, True)
    params = make(shape[1]), make(shape[1])
    return {
        "planes": (x, *params, *rest),
        "pixels": (x.contiguous(memory_format=torch.channels_last), *params, *rest),
    }


def liger() -> Callable[..., Any]:
    """Liger's Triton kernels, for contiguous x."""
    from liger_kernel.ops.group_norm import LigerGroupNormFunction

    def run(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, silu: bool) -> Tensor:
        grouped = x.contiguous().reshape(x.shape[0], x.shape[1], -1)
        z = LigerGroupNormFunction.apply(grouped, weight, bias, x.shape[1], groups, eps)
        z = z.reshape(x.shape)
        return torch.nn.functional.silu(z) if silu else z

    return run


op = Op(
    schema="group_norm(Tensor x, Tensor? weight, Tensor? bias, int groups, float eps, bool silu, "
    "bool save) -> (Tensor y, Tensor mean, Tensor rstd)",
    reference=reference,
    statistics={"mean": mean, "rstd": rstd},
    backward=Backward(
        "group_norm_backward(Tensor grad_y, Tensor x, Tensor? weight, Tensor? bias, int groups, "
        "float eps, bool silu, Tensor mean, Tensor rstd) "
        "-> (Tensor grad_x, Tensor grad_weight, Tensor grad_bias)",
        backward_reference,
    ),
    validate=validate,
    cases=cases,
    like="x",
    # Add, subtract, square, add, times 1 / std, times weight, plus bias. The silu has four more.
    operations=lambda x, silu: (11 if silu else 7) * x.numel(),
    sized=_sized,
    peers={"liger": liger},
    rowwise=True,
    module=lambda x, weight, groups, eps, silu: opforge.nn.GroupNorm(
        groups, x.shape[1], eps, weight is not None, activation="silu" if silu else None
    ),
    build=Build(by_dtype=["cuda"]),
)


def group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    activation: str | None = None,
    save: bool = True,
) -> Tensor:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over each group of channels of each sample.

    It is computed in float32 (float64 for float64) and returned in the dtype and the layout of
    ``x``. Both NCHW and ``channels_last`` are read without a copy.

    Args:
        x: (samples, channels, ...), with any further dims.
        groups: the number of groups of channels.
        weight: one value per channel, in any dtype; None means ones.
        bias: one value per channel, in any dtype; None means zeros.
        eps: is added to the variance; positive.
        activation: ``"silu"`` applies ``z * sigmoid(z)`` to the result z in the same pass.
        save: save the mean and 1 / std of each group for the backward, which otherwise computes
            them again.
    """
    if activation not in ("silu", None):
        raise ValueError(
            f'opforge.group_norm: activation must be "silu" or None, got {activation!r}'
        )
    y: Tensor = op(x, weight, bias, groups, eps, activation == "silu", save)
    return y
