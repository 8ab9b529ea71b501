# SPDX-License-Identifier: Apache-2.0
# Made by python -m opforge.registration.stubs: not to be edited.

from collections.abc import Mapping, Sequence
from typing import Literal, overload

from torch import Tensor, dtype

from opforge import nn as nn
from opforge import sim as sim
from opforge import testing as testing
from opforge.discover import load as load
from opforge.discover import register_all as register_all
from opforge.formula.fuse import fuse as fuse
from opforge.interactive.inline import inline as inline
from opforge.interactive.magic import load_ipython_extension as load_ipython_extension
from opforge.op import Backward as Backward
from opforge.op import Build as Build
from opforge.op import Make as Make
from opforge.op import Op as Op
from opforge.op import PackageHeaders as PackageHeaders
from opforge.profile.launch import launch_config as launch_config
from opforge.profile.nvtx import nvtx as nvtx

__version__: str

def bias_dropout_residual(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    p: float = 0.1,
    training: bool = True,
) -> Tensor:
    """``residual + dropout(x + bias, p)`` in one pass."""

def bias_gelu(x: Tensor, bias: Tensor, approximate: str = "none") -> Tensor:
    """``gelu(x + bias)``, with ``bias`` along the last dim of ``x``."""

def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: Literal["none", "mean", "sum"] = "mean",
    overwrite_logits: bool = False,
) -> Tensor:
    """Cross entropy of ``logits``, with classes along the last dim, and the labels in
    ``target``."""

def cumsum(x: Tensor, dim: int = -1, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Running sums of ``x`` along ``dim``, with the same bits every time."""

def dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Set elements to 0 with probability ``p`` and divide the others by ``1 - p``."""

def fp8_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    *,
    scaling: Literal["row", "tensor"] = "row",
    fast_accum: bool = False,
) -> Tensor:
    """``activation(x @ weight.T + bias) + residual``, multiplied as FP8 numbers."""

def gated_linear(
    x: Tensor,
    gate_weight: Tensor,
    up_weight: Tensor | None = None,
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    activation: str | None = "silu",
    *,
    tf32: bool = False,
) -> Tensor:
    """``activation(x @ gate_weight.T + gate_bias) * (x @ up_weight.T + up_bias)``."""

def geglu(gate: Tensor, up: Tensor | None = None, approximate: str = "none") -> Tensor:
    """``gelu(gate) * up``. Without ``up``, the last dim of ``gate`` holds both halves."""

def group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-05,
    activation: str | None = None,
    save: bool = True,
) -> Tensor:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over each group of channels of each
    sample."""

def grouped_linear(
    x: Tensor,
    weights: Tensor,
    offsets: Tensor,
    biases: Tensor | None = None,
    *,
    tf32: bool = False,
) -> Tensor:
    """``x[rows] @ weights[e].T + biases[e]`` for the rows of each group ``e``."""

@overload
def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: None = None,
    *,
    eps: float = 1e-05,
    relu: Literal["before", "after"] | None = None,
    dropout: Literal["before", "after"] | None = None,
    p: float = 0.0,
    save: bool = True,
) -> Tensor:
    """``(h - mean(h)) / sqrt(var(h) + eps) * weight + bias`` over the last dim, with ``h = x``."""

@overload
def layer_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor,
    *,
    eps: float = 1e-05,
    relu: Literal["before", "after"] | None = None,
    dropout: Literal["before", "after"] | None = None,
    p: float = 0.0,
    save: bool = True,
) -> tuple[Tensor, Tensor]:
    """``(h - mean(h)) / sqrt(var(h) + eps) * weight + bias`` over the last dim, with ``h = x``."""

@overload
def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    residual: Tensor,
    eps: float = 1e-05,
    relu: Literal["before", "after"] | None = None,
    dropout: Literal["before", "after"] | None = None,
    p: float = 0.0,
    save: bool = True,
) -> tuple[Tensor, Tensor]:
    """``(h - mean(h)) / sqrt(var(h) + eps) * weight + bias`` over the last dim, with ``h = x``."""

def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    *,
    scale: float = 1.0,
    clamp: tuple[float | None, float | None] | None = None,
    tf32: bool = False,
    main_grad: Tensor | None = None,
) -> Tensor:
    """``clamp(scale * activation(x @ weight.T + bias)) + residual``."""

def linear_cross_entropy(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: Literal["none", "mean", "sum"] = "mean",
    chunk: int = 0,
    low_memory: bool = False,
) -> Tensor:
    """``cross_entropy(linear(input, weight, bias), target)`` without holding all logits."""

def linear_dact(
    grad: Tensor,
    weight: Tensor | None,
    z: Tensor,
    activation: str | None,
    *,
    gated: bool = False,
    tf32: bool = False,
    with_h: bool = False,
    with_sums: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of ``z``, given that of ``linear(h, weight)`` with ``h = activation(z)``."""

def log_softmax(
    x: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float = 1.0,
    causal: bool = False,
) -> Tensor:
    """``log_softmax(x * scale + mask)`` over the last dim, computed in float32 and rounded once."""

def matmul(a: Tensor, b: Tensor, kernel: str | None = None, *, tf32: bool = False) -> Tensor:
    """``a @ b``, by the kernel named. Shapes broadcast as those of :func:`torch.matmul`."""

def mlp(
    x: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    *,
    activation: str | None = "gelu",
    gate_weight: Tensor | None = None,
    gate_bias: Tensor | None = None,
    residual: Tensor | None = None,
    tf32: bool = False,
    fp8: Literal["row", "tensor"] | None = None,
    main_grad: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """``linear(activation(linear(x, up_weight, up_bias)), down_weight, down_bias) + residual``."""

def quantize_fp8(
    x: Tensor,
    dtype: dtype = ...,
    scaling: Literal["row", "tensor"] = "row",
    *,
    transposed: bool = False,
) -> tuple[Tensor, ...]:
    """FP8 numbers and float32 scales: ``q.float() * scale`` is near ``x``."""

def reduce_sum(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """Sum of ``x`` over ``dim`` (an int, several, or None for all), the same bits every time."""

def reglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """``relu(gate) * up``. Without ``up``, the last dim of ``gate`` holds both halves."""

def relu(x: Tensor) -> Tensor:
    """Rectified linear unit, elementwise. The output has the strides of ``x``."""

@overload
def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    residual: None = None,
    *,
    eps: float = 1e-06,
    offset: float = 0.0,
    relu: Literal["before", "after"] | None = None,
    dropout: Literal["before", "after"] | None = None,
    p: float = 0.0,
    save: bool = True,
) -> Tensor:
    """``h / sqrt(mean(h²) + eps) * (weight + offset)`` over the last dim, with ``h = x``."""

@overload
def rms_norm(
    x: Tensor,
    weight: Tensor | None,
    residual: Tensor,
    *,
    eps: float = 1e-06,
    offset: float = 0.0,
    relu: Literal["before", "after"] | None = None,
    dropout: Literal["before", "after"] | None = None,
    p: float = 0.0,
    save: bool = True,
) -> tuple[Tensor, Tensor]:
    """``h / sqrt(mean(h²) + eps) * (weight + offset)`` over the last dim, with ``h = x``."""

@overload
def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    *,
    residual: Tensor,
    eps: float = 1e-06,
    offset: float = 0.0,
    relu: Literal["before", "after"] | None = None,
    dropout: Literal["before", "after"] | None = None,
    p: float = 0.0,
    save: bool = True,
) -> tuple[Tensor, Tensor]:
    """``h / sqrt(mean(h²) + eps) * (weight + offset)`` over the last dim, with ``h = x``."""

def rope(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    interleaved: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Rotate queries and keys by the angles of their positions. Returns ``(q, k)``."""

def scale_bias_relu(x: Tensor, bias: Tensor, scale: float = 1.0) -> Tensor:
    """``relu(x * scale + bias)``, with ``bias`` along the last dim of ``x``."""

def scaled_linear(
    x: Tensor,
    weight: Tensor,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    *,
    out_dtype: dtype = ...,
    fast_accum: bool = False,
) -> Tensor:
    """``activation((x * x_scale) @ (weight * weight_scale).T + bias) + residual`` of FP8
    numbers."""

def softmax(
    x: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float = 1.0,
    causal: bool = False,
) -> Tensor:
    """``softmax(x * scale + mask)`` over the last dim, computed in float32 and rounded once."""

def stencil2d(x: Tensor, weight: Tensor, boundary: str = "zero", fill: float = 0.0) -> Tensor:
    """Weighted sum of each pixel and its neighbours, over the last two dims of ``x``."""

def swiglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """``silu(gate) * up``. Without ``up``, the last dim of ``gate`` holds both halves."""

def vector_add(a: Tensor, b: Tensor) -> Tensor:
    """``a + b`` with broadcasting, for tensors of one dtype (autocast promotes to the wider)."""
