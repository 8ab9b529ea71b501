# SPDX-License-Identifier: Apache-2.0
"""x * w * scale, with paths that ordinary cases do not take; tests make one of them wrong."""

import torch

from opforge import Backward, Op


def reference(x, w, scale):
    return x * w * scale


def backward_reference(grad_y, x, w, scale, needs_x, needs_w):
    grad_w = (grad_y * x * scale).reshape(-1, w.numel()).sum(0)
    return grad_y * w * scale, grad_w


def validate(x, w, scale):
    if x.dim() != 2 or tuple(w.shape) != (x.shape[-1],):
        raise ValueError(
            f"x has shape {tuple(x.shape)} and w {tuple(w.shape)}; w needs a value per column"
        )
    if x.dtype != w.dtype:
        raise TypeError(f"x is {x.dtype} and w is {w.dtype}; they must have one dtype")


def cases(make):
    for shape in [(7, 9), (5, 33), (4, 128)]:
        yield make(*shape), make(shape[-1]), 0.5


op = Op(
    schema="special_paths(Tensor x, Tensor w, float scale) -> Tensor y",
    reference=reference,
    backward=Backward(
        "special_paths_backward(Tensor grad_y, Tensor x, Tensor w, float scale, bool needs_x, "
        "bool needs_w) -> (Tensor grad_x, Tensor grad_w)",
        backward_reference,
    ),
    dtypes=(torch.float32, torch.float64),
    validate=validate,
    cases=cases,
)
