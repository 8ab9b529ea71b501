# SPDX-License-Identifier: Apache-2.0
"""The module does not hand its option on.

The op is right; models use the module.
"""

import torch

from opforge import Op


class Scaled(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return op(x, 1.0)  # wrong: not self.scale


def cases(make):
    yield make(33, 65), 2.0
    yield make(7), -1.0


op = Op(
    namespace="wrong_ops",
    schema="module_forgets_option(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: x * scale,
    cases=cases,
    module=lambda scale: Scaled(scale),
)
