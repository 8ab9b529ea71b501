# SPDX-License-Identifier: Apache-2.0
"""The sum of a row, or its mean; the backward is that of the sum in both cases.

An option is added to the forward and its tests; the backward, in another file, is forgotten.
Training with the mean then runs at a learning rate that grows with the length of the rows.
"""

from opforge import Op


def reference(x, mean):
    return x.mean(-1) if mean else x.sum(-1)


def backward(grad_y, x_shape, mean):
    return grad_y.unsqueeze(-1).expand(x_shape)  # wrong: divided by x_shape[-1] if mean


def validate(x, mean):
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension, got a scalar")


def cases(make):
    for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]:
        yield make(*shape), False
        yield make(*shape), True


op = Op(
    namespace="wrong_ops",
    schema="option_ignored_in_gradient(Tensor x, bool mean) -> Tensor y",
    reference=reference,
    backward=backward,
    validate=validate,
    cases=cases,
)
