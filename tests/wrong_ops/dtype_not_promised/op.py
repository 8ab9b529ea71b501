# SPDX-License-Identifier: Apache-2.0
"""The sum of a bfloat16 or float16 row comes out as float32, the dtype it was added up in.

The accumulator's tensor is returned as it is. In eager mode the next op converts it and nobody
notices; a compiled graph takes it for the dtype that the fake kernel told.
"""

from opforge import Op


def validate(x):
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension, got a scalar")


op = Op(
    namespace="wrong_ops",
    schema="dtype_not_promised(Tensor x) -> Tensor y",
    reference=lambda x: x.sum(-1),
    validate=validate,
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]
    ],
)
