# SPDX-License-Identifier: Apache-2.0
"""The scale goes through a float on its way to the kernel: for float64, 0.1 is wrong in the eighth
digit.

Launchers take scalars as float because that is what the first kernel needed.
"""

from opforge import Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 2.0), ((2, 3, 17), 0.1)]:
        yield make(*shape), scale
    yield make(1000), 3.0


op = Op(
    namespace="wrong_ops",
    schema="scalar_in_float(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: x * scale,
    cases=cases,
)
