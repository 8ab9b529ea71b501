# SPDX-License-Identifier: Apache-2.0
"""x + bias, whose backward takes the first dim of x for the number of rows.

For a matrix it is. A batch of sequences has three dims, and only the first few rows of it are
summed into the gradient of bias: right shape, plausible size, wrong.
"""

from opforge import Op


def validate(x, bias):
    if x.dim() == 0 or tuple(bias.shape) != (x.shape[-1],):
        raise ValueError(
            f"bias has shape {tuple(bias.shape)} and x has {tuple(x.shape)}; "
            "bias needs one value per column of x"
        )


def backward(grad_y, x_shape):
    rows = grad_y.reshape(x_shape[:-1].numel(), x_shape[-1])
    first = x_shape[0] if len(x_shape) > 1 else 1
    return grad_y, rows[:first].sum(0)  # wrong: of all rows


def cases(make):
    for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]:
        yield make(*shape), make(shape[-1])


op = Op(
    namespace="wrong_ops",
    schema="bias_gradient_of_batch(Tensor x, Tensor bias) -> Tensor y",
    reference=lambda x, bias: x + bias,
    backward=backward,
    validate=validate,
    cases=cases,
)
