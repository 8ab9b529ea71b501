# SPDX-License-Identifier: Apache-2.0
"""The kernel works in vectors of four and leaves what remains of the last one.

Round sizes never show it. (The result is zeroed first, so that the tail is wrong in every run
and not only when the memory was used before.)
"""

from opforge import Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 2.0), ((2, 3, 17), 0.1)]:
        yield make(*shape), scale
    yield make(1000), 3.0


op = Op(
    namespace="wrong_ops",
    schema="missing_tail(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: x * scale,
    cases=cases,
)
