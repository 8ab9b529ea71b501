# SPDX-License-Identifier: Apache-2.0
"""The kernel is launched on the default stream, not on the current one.

It is what <<<grid, block>>> does. Under a side stream nothing orders the kernel after what makes
x, and it cannot be captured in a CUDA graph.
"""

from opforge import Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 2.0), ((2, 3, 17), 0.1)]:
        yield make(*shape), scale
    yield make(1000), 3.0


op = Op(
    namespace="wrong_ops",
    schema="default_stream(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: x * scale,
    cases=cases,
)
