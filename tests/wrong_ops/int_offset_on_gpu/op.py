# SPDX-License-Identifier: Apache-2.0
"""Offsets into x are ints in the kernel, which wrap around beyond 2^31 elements.

64 bits cost registers, and the number of elements fits. But it is strides that make an offset
large: two rows of a huge matrix are enough.
"""

from opforge import Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 2.0), ((2, 3, 17), 0.1)]:
        yield make(*shape), scale
    yield make(1000), 3.0


op = Op(
    namespace="wrong_ops",
    schema="int_offset_on_gpu(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: x * scale,
    cases=cases,
)
