# SPDX-License-Identifier: Apache-2.0
"""The square of each element, with the rows of x in the grid's second dim.

A grid has 65,535 blocks at most in y. Batches of tokens have more rows than that, and the launch
fails.
"""

from opforge import Op


def validate(x):
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension, got a scalar")


op = Op(
    namespace="wrong_ops",
    schema="rows_in_grid_y(Tensor x) -> Tensor y",
    reference=lambda x: x * x,
    validate=validate,
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]
    ],
)
