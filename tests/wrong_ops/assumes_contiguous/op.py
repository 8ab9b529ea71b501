# SPDX-License-Identifier: Apache-2.0
"""The kernel reads numel() elements from data_ptr() on, whatever the strides of x.

The most common fault of all: the test inputs are contiguous. (Here expanded inputs are copied
first, so that only gaps and other orders of memory are misread.)
"""

from opforge import Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 2.0), ((2, 3, 17), 0.1)]:
        yield make(*shape), scale
    yield make(1000), 3.0


op = Op(
    namespace="wrong_ops",
    schema="assumes_contiguous(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: x * scale,
    cases=cases,
)
