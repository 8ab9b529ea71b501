# SPDX-License-Identifier: Apache-2.0
"""With a frozen bias and a strided input the gradient of x is halved.

A shortcut for a frozen bias that was only tried on contiguous tensors.
"""

from opforge import Backward, Op


def gradient(grad_y, x, needs_bias):
    return 2 * x * grad_y, grad_y.sum(0)


def composed(grad_y, x, needs_bias):
    grad_x, grad_bias = gradient(grad_y, x, needs_bias)
    if not needs_bias and not x.is_contiguous():
        grad_x = grad_x / 2
    return grad_x, grad_bias


def cases(make):
    yield make(7, 5), make(5)
    yield make(33, 65), make(65)


op = Op(
    namespace="wrong_ops",
    schema="frozen_bias_strided_input(Tensor x, Tensor bias) -> Tensor y",
    reference=lambda x, bias: x * x + bias,
    composed=lambda x, bias: x * x + bias,
    backward=Backward(
        "frozen_bias_strided_input_backward(Tensor grad_y, Tensor x, bool needs_bias) "
        "-> (Tensor grad_x, Tensor grad_bias)",
        gradient,
        composed=composed,
    ),
    rowwise=True,
    cases=cases,
)
