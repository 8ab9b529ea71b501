# SPDX-License-Identifier: Apache-2.0
"""log(exp(a) + exp(b)) for float64 alone, which a quick check has no second dtype for."""

import torch

from opforge import Op


def reference(a, b):
    larger, smaller = torch.maximum(a, b), torch.minimum(a, b)
    # Of two equal infinities the difference is NaN, and the answer is one of them.
    away = torch.where(larger == smaller, 0, smaller - larger)
    return larger + torch.log1p(torch.exp(away))


def validate(a, b):
    if a.shape != b.shape:
        raise ValueError(f"a has shape {tuple(a.shape)}, b has {tuple(b.shape)}; they must agree")


def cases(make):
    for shape in [(7,), (5, 33), (2, 3, 17), (0, 4), ()]:
        yield 3 * make(*shape), 3 * make(*shape)
    yield make(9, 24).t(), make(9, 24).t()


op = Op(
    namespace="right_ops",
    schema="log_add_exp(Tensor a, Tensor b) -> Tensor y",
    reference=reference,
    dtypes=(torch.float64,),
    validate=validate,
    cases=cases,
    pointwise=True,
)
