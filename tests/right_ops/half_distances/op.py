# SPDX-License-Identifier: Apache-2.0
"""|a - b| for float16 alone, which has neither bfloat16 nor a float64 kernel beside it."""

import torch

from opforge import Op


def validate(a, b):
    if a.shape != b.shape:
        raise ValueError(f"a has shape {tuple(a.shape)}, b has {tuple(b.shape)}; they must agree")


def cases(make):
    for shape in [(7,), (5, 33), (2, 3, 17), (0, 4), ()]:
        yield make(*shape), make(*shape)
    yield make(9, 24).t().round(), make(9, 24).t().round()  # where many differences are 0


op = Op(
    namespace="right_ops",
    schema="half_distances(Tensor a, Tensor b) -> Tensor y",
    reference=lambda a, b: (a - b).abs(),
    dtypes=(torch.float16,),
    validate=validate,
    cases=cases,
    pointwise=True,
)
