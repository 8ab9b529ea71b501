# SPDX-License-Identifier: Apache-2.0
"""x + bias, which refuses shapes that do not fit without saying what they were.

"shapes do not match" from inside a model of a hundred layers is where an afternoon goes.
"""

from opforge import Op


def validate(x, bias):
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension, got a scalar")
    if bias.dim() != 1:
        raise ValueError(f"bias must have one dimension, got {bias.dim()}")
    if bias.shape[0] != x.shape[-1]:
        raise ValueError("shapes do not match")  # wrong: whose, and which?


def cases(make):
    for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]:
        yield make(*shape), make(shape[-1])


op = Op(
    namespace="wrong_ops",
    schema="error_without_shapes(Tensor x, Tensor bias) -> Tensor y",
    reference=lambda x, bias: x + bias,
    validate=validate,
    cases=cases,
)
