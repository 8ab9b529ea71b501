# SPDX-License-Identifier: Apache-2.0
"""x + bias, whose backward finds the dim of bias by its size.

In a square matrix the first dim of that size is the rows: the gradient of bias is then summed
along the wrong one. It has the right shape, and every test with other sizes passes.
"""

from opforge import Op


def validate(x, bias):
    if x.dim() == 0 or tuple(bias.shape) != (x.shape[-1],):
        raise ValueError(
            f"bias has shape {tuple(bias.shape)} and x has {tuple(x.shape)}; "
            "bias needs one value per column of x"
        )


def backward(grad_y, bias):
    own = list(grad_y.shape).index(bias.shape[0])  # wrong: it is the last dim
    others = [d for d in range(grad_y.dim()) if d != own]
    return grad_y, grad_y.sum(others) if others else grad_y


def cases(make):
    for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9), (8, 8)]:
        yield make(*shape), make(shape[-1])


op = Op(
    namespace="wrong_ops",
    schema="bias_gradient_of_square(Tensor x, Tensor bias) -> Tensor y",
    reference=lambda x, bias: x + bias,
    backward=backward,
    validate=validate,
    cases=cases,
)
