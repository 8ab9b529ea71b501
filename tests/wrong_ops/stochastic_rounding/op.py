# SPDX-License-Identifier: Apache-2.0
"""bfloat16 results are rounded up or down by a generator that nobody can seed.

Stochastic rounding is what some training recipes want, but an op that draws from a state of its
own gives other bits in every run; each of them is within one unit of the last place.
"""

import torch

from opforge import Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 2.0), ((2, 3, 17), 0.1)]:
        yield make(*shape), scale
    yield make(1000), 3.0


op = Op(
    namespace="wrong_ops",
    schema="stochastic_rounding(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: x * scale,
    dtypes=(torch.bfloat16, torch.float32),
    cases=cases,
)
