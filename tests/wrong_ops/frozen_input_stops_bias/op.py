# SPDX-License-Identifier: Apache-2.0
"""x + bias, whose backward returns nothing at all if x needs no gradient.

In the middle of a network x always does. In the first layer, or behind a frozen part, it does
not, and then bias is never trained.
"""

from opforge import Op


def validate(x, bias):
    if x.dim() == 0 or tuple(bias.shape) != (x.shape[-1],):
        raise ValueError(
            f"bias has shape {tuple(bias.shape)} and x has {tuple(x.shape)}; "
            "bias needs one value per column of x"
        )


def backward(grad_y, x_shape, needs_x):
    if not needs_x:
        return None, None  # wrong: bias may need one
    return grad_y, grad_y.reshape(x_shape[:-1].numel(), x_shape[-1]).sum(0)


def cases(make):
    for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]:
        yield make(*shape), make(shape[-1])


op = Op(
    namespace="wrong_ops",
    schema="frozen_input_stops_bias(Tensor x, Tensor bias) -> Tensor y",
    reference=lambda x, bias: x + bias,
    backward=backward,
    validate=validate,
    cases=cases,
)
