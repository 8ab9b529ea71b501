# SPDX-License-Identifier: Apache-2.0
"""The kernel is launched on whatever GPU is current, not on that of x.

With one GPU there is no difference. With two, a tensor on the second is an illegal address for
the first, or is read across the bus.
"""

from opforge import Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 2.0), ((2, 3, 17), 0.1)]:
        yield make(*shape), scale
    yield make(1000), 3.0


op = Op(
    namespace="wrong_ops",
    schema="no_device_guard(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: x * scale,
    cases=cases,
)
