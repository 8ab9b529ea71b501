# SPDX-License-Identifier: Apache-2.0
"""hardswish(x + bias): at its kinks the gradient is a convention, and rounding decides the side."""

import torch

from opforge import Backward, Op


def reference(x, bias):
    h = x + bias
    return h * (h + 3).clamp(0, 6) / 6


def backward_reference(grad_y, x, bias):
    """At a kink the slope is that of the middle piece, as torch's clamp has it."""
    h = x + bias
    slope = torch.where(h < -3, 0, torch.where(h > 3, 1, h / 3 + 0.5))
    grad = grad_y * slope
    return grad, grad


def validate(x, bias):
    if x.shape != bias.shape:
        raise ValueError(
            f"x has shape {tuple(x.shape)}, bias has {tuple(bias.shape)}; they must agree"
        )
    if x.dtype != bias.dtype:
        raise TypeError(f"x is {x.dtype} but bias is {bias.dtype}; convert one of them")


def cases(make):
    for shape in [(7,), (5, 33), (2, 3, 17), (0, 4), ()]:
        yield 2 * make(*shape), make(*shape)
    # In float32 2.9 + 0.1 is 3, and a little more in float64; 3.1 - 0.1 the other way round.
    tenths = 0.1 * make(40, 9).round()
    yield 3 - tenths, tenths
    yield tenths - 3, -tenths


op = Op(
    namespace="right_ops",
    schema="shifted_hardswish(Tensor x, Tensor bias) -> Tensor y",
    reference=reference,
    backward=Backward(
        "shifted_hardswish_backward(Tensor grad_y, Tensor x, Tensor bias) "
        "-> (Tensor grad_x, Tensor grad_bias)",
        backward_reference,
    ),
    validate=validate,
    cases=cases,
    pointwise=True,
)
