# SPDX-License-Identifier: Apache-2.0
"""Strides of 0 are taken for 1: the kernel reads past what an expanded tensor holds.

Dims of size 1 can have any stride, so somebody made the smallest one 1 before dividing by it;
the stride 0 of expand() went the same way.
"""

from opforge import Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 2.0), ((2, 3, 17), 0.1)]:
        yield make(*shape), scale
    yield make(1000), 3.0


op = Op(
    namespace="wrong_ops",
    schema="zero_stride_as_one(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: x * scale,
    cases=cases,
)
