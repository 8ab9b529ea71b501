# SPDX-License-Identifier: Apache-2.0
"""Results below the smallest normal number are flushed to zero.

That is what -ffast-math and -use_fast_math do, and a library built so may do it to the whole
process. Small gradients vanish that PyTorch keeps.
"""

from opforge import Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 2.0), ((2, 3, 17), 0.1)]:
        yield make(*shape), scale
    yield make(1000), 3.0


op = Op(
    namespace="wrong_ops",
    schema="subnormals_flushed(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: x * scale,
    cases=cases,
)
