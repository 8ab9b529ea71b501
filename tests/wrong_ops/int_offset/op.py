# SPDX-License-Identifier: Apache-2.0
"""Offsets into x are ints, which wrap around beyond 2^31 elements.

Few elements are enough for that: a column of a large matrix, or a slice of a cache of keys and
values, has strides that large. The wrapped offset points in front of the tensor.
"""

from opforge import Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 2.0), ((2, 3, 17), 0.1)]:
        yield make(*shape), scale
    yield make(1000), 3.0


op = Op(
    namespace="wrong_ops",
    schema="int_offset(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: x * scale,
    cases=cases,
)
