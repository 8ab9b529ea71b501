# SPDX-License-Identifier: Apache-2.0
"""2 * x in CUDA, whose kernel and whose host code have a path for one width each, and the
latter one for widths that are large for the GPU."""

import torch

from opforge import Op


def validate(x):
    if x.dim() != 1:
        raise ValueError(f"x has {x.dim()} dims; it needs one")


def cases(make):
    for shape in [(7,), (33,), (1000,)]:
        yield (make(*shape),)


op = Op(
    schema="special_widths(Tensor x) -> Tensor y",
    reference=lambda x: 2 * x,
    dtypes=(torch.float32,),
    cases=cases,
    validate=validate,
)
