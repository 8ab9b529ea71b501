# SPDX-License-Identifier: Apache-2.0
"""x * scale through a kernel for x * scale + bias, with a bias of 0: -0.0 becomes 0.0.

One kernel serves both, and adding zero seems harmless. The sign of zero decides what 1 / y,
atan2 and copysign make of it.
"""

from opforge import Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 2.0), ((2, 3, 17), 0.1)]:
        yield make(*shape), scale
    yield make(1000), 3.0


op = Op(
    namespace="wrong_ops",
    schema="minus_zero_lost(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: x * scale,
    cases=cases,
)
