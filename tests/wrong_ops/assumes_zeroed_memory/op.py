# SPDX-License-Identifier: Apache-2.0
"""The sum of each row, in a workspace that is added to without being set to zero first.

Large blocks come from the operating system, which zeroes them, so it works on the author's
machine for as long as no allocator hands out memory that was used before.
"""

from opforge import Op


def validate(x):
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension, got a scalar")


op = Op(
    namespace="wrong_ops",
    schema="assumes_zeroed_memory(Tensor x) -> Tensor y",
    reference=lambda x: x.sum(-1),
    validate=validate,
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]
    ],
)
