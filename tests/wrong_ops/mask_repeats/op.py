# SPDX-License-Identifier: Apache-2.0
"""The dropout mask repeats itself every 64 elements.

Each thread seeds its generator with its lane.
"""

import torch

from opforge import Op


def kept(x, seed, p):
    generator = torch.Generator().manual_seed(int(seed))
    drawn = torch.rand(64, generator=generator) >= p
    return drawn.repeat(-(-x.numel() // 64))[: x.numel()].view(x.shape)


def cases(make):
    seed = torch.tensor([3])
    yield make(33, 65), seed, 0.5
    yield make(7), seed, 0.25


op = Op(
    namespace="wrong_ops",
    schema="mask_repeats(Tensor x, Tensor seed, float p) -> Tensor y",
    reference=lambda x, seed, p: torch.where(kept(x, seed, p), x / (1 - p) if p < 1 else x * 0, 0),
    own_dtypes={"seed": (torch.int64,)},
    cases=cases,
)
