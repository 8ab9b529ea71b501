# SPDX-License-Identifier: Apache-2.0
"""Doubles x; the launch has a block of 512 threads."""

import torch

from opforge import Op

op = Op(
    schema="doubled(Tensor x) -> Tensor y",
    reference=lambda x: 2 * x,
    dtypes=(torch.float32, torch.float64),
    cases=lambda make: [(make(1000),)],
)
