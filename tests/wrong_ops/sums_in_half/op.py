# SPDX-License-Identifier: Apache-2.0
"""Sums are kept in the dtype of x, which for float16 and bfloat16 has 11 and 8 bits.

Once the sum is a few hundred times its terms, adding one changes nothing any more: the sum of a
long row stands still.
"""

from opforge import Op


def validate(x):
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension, got a scalar")


op = Op(
    namespace="wrong_ops",
    schema="sums_in_half(Tensor x) -> Tensor y",
    reference=lambda x: x.sum(-1),
    validate=validate,
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]
    ],
)
