# SPDX-License-Identifier: Apache-2.0
"""The kernel computes with the scale of its very first call.

A value that seemed constant was made `static` to save work; tests that use one scale see
nothing.
"""

from opforge import Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 2.0), ((2, 3, 17), 0.1)]:
        yield make(*shape), scale
    yield make(1000), 3.0


op = Op(
    namespace="wrong_ops",
    schema="stale_scalar(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: x * scale,
    cases=cases,
)
