# SPDX-License-Identifier: Apache-2.0
"""float64 is accepted, but computed in float32.

The type list was extended and the accumulator was not. Results are right to seven digits, so
that tests with loose tolerances pass.
"""

from opforge import Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 2.0), ((2, 3, 17), 0.1)]:
        yield make(*shape), scale
    yield make(1000), 3.0


op = Op(
    namespace="wrong_ops",
    schema="double_through_float(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: x * scale,
    cases=cases,
)
