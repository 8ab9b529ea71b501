# SPDX-License-Identifier: Apache-2.0
"""The variance of a row as the mean of squares minus the square of the mean.

One pass instead of two, and right on paper. If the mean is much larger than the spread, two
large numbers cancel and nothing is left of the difference, or less than zero.
"""

from opforge import Op


def validate(x):
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension, got a scalar")


op = Op(
    namespace="wrong_ops",
    schema="naive_variance(Tensor x) -> Tensor y",
    reference=lambda x: x.var(-1, correction=0),
    validate=validate,
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]
    ],
)
