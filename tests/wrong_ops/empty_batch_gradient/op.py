# SPDX-License-Identifier: Apache-2.0
"""x + bias, whose backward makes the gradient of bias from a mean over the rows.

The mean of no rows is NaN, so an empty batch, whose gradient should be zero, turns the bias into
NaN at the next step of the optimizer.
"""

import math

from opforge import Op


def validate(x, bias):
    if x.dim() == 0 or tuple(bias.shape) != (x.shape[-1],):
        raise ValueError(
            f"bias has shape {tuple(bias.shape)} and x has {tuple(x.shape)}; "
            "bias needs one value per column of x"
        )


def backward(grad_y, x_shape, bias):
    count = math.prod(x_shape[:-1])
    rows = grad_y.reshape(count, x_shape[-1]).double()
    grad_bias = rows.mean(0) * count  # wrong: NaN if count is 0; the sum is 0
    return grad_y, grad_bias.to(bias.dtype)


def cases(make):
    for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]:
        yield make(*shape), make(shape[-1])


op = Op(
    namespace="wrong_ops",
    schema="empty_batch_gradient(Tensor x, Tensor bias) -> Tensor y",
    reference=lambda x, bias: x + bias,
    backward=backward,
    validate=validate,
    cases=cases,
)
