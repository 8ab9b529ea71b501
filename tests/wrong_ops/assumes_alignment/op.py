# SPDX-License-Identifier: Apache-2.0
"""Contiguous inputs are read as 16-byte vectors, whether or not they begin at such an address.

Fresh tensors always do. x[1:] is contiguous too, and a vector load from it is an error of the
GPU that ends the process.
"""

from opforge import Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 2.0), ((2, 3, 17), 0.1)]:
        yield make(*shape), scale
    yield make(1000), 3.0


op = Op(
    namespace="wrong_ops",
    schema="assumes_alignment(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: x * scale,
    cases=cases,
)
