# SPDX-License-Identifier: Apache-2.0
"""How many elements of each row are above a limit, counted by ballots and popc."""

from opforge import Op


def validate(x, limit):
    if x.dim() == 0:
        raise ValueError("x must have at least one dim, got a scalar")


def cases(make):
    for shape in [(7,), (5, 33), (9, 128), (2, 3, 17), (0, 4), (4, 0)]:
        yield make(*shape), 0.5
    yield make(24, 9).t().round(), 1.0


op = Op(
    namespace="right_ops",
    schema="count_above(Tensor x, float limit) -> Tensor count",
    reference=lambda x, limit: (x > limit).sum(-1),
    validate=validate,
    cases=cases,
    rowwise=True,
)
