# SPDX-License-Identifier: Apache-2.0
"""The sum of each row, one thread per element: a row has as many elements as a block has threads.

1,024 was more than the model's width when it was written. What lies beyond is left out.
"""

from opforge import Op


def validate(x):
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension, got a scalar")


op = Op(
    namespace="wrong_ops",
    schema="row_as_one_block(Tensor x) -> Tensor y",
    reference=lambda x: x.sum(-1),
    validate=validate,
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]
    ],
)
