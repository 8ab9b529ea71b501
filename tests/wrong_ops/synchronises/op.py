# SPDX-License-Identifier: Apache-2.0
"""The launcher waits for the GPU to finish before it returns.

Left over from debugging, or there to report an error early. The CPU can no longer run ahead, and
a CUDA graph refuses to capture it.
"""

from opforge import Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 2.0), ((2, 3, 17), 0.1)]:
        yield make(*shape), scale
    yield make(1000), 3.0


op = Op(
    namespace="wrong_ops",
    schema="synchronises(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: x * scale,
    cases=cases,
)
