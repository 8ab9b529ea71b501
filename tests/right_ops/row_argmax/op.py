# SPDX-License-Identifier: Apache-2.0
"""The index of the largest element of each row: integers, which have no gradient."""

from opforge import Op


def validate(x):
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"x must have rows of at least one element, got shape {tuple(x.shape)}")


def cases(make):
    for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 1)]:
        yield (make(*shape),)
    yield (make(6, 40).round(),)  # the first of several equal ones
    yield (make(24, 9).t(),)


op = Op(
    namespace="right_ops",
    schema="row_argmax(Tensor x) -> Tensor index",
    reference=lambda x: x.argmax(-1),
    validate=validate,
    cases=cases,
    rowwise=True,
)
