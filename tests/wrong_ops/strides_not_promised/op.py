# SPDX-License-Identifier: Apache-2.0
"""The kernel lays its result out column by column, where the record promises row by row.

Kernels allocate in the layout that suits them (channels last, say), the fake kernel is written
from memory, and torch.compile then reads the result with the strides of the fake one.
"""

from opforge import Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 2.0), ((2, 3, 17), 0.1)]:
        yield make(*shape), scale
    yield make(1000), 3.0


op = Op(
    namespace="wrong_ops",
    schema="strides_not_promised(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: x * scale,
    cases=cases,
)
