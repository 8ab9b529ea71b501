# SPDX-License-Identifier: Apache-2.0
"""The stride from one column to the next is an int, while that of rows has its 64 bits.

A transposed slice of a large tensor has neighbours in a row that lie more than 2^31 elements apart.
"""

from opforge import Op


def validate(x):
    if x.dim() != 2:
        raise ValueError(f"x has {x.dim()} dims, of shape {tuple(x.shape)}; it needs two")


def cases(make):
    for shape in [(7, 5), (33, 65), (4, 128)]:
        yield (make(*shape),)


op = Op(
    namespace="wrong_ops",
    schema="int_column_stride(Tensor x) -> Tensor y",
    reference=lambda x: x * 2,
    validate=validate,
    cases=cases,
)
