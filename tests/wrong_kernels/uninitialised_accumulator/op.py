# SPDX-License-Identifier: Apache-2.0
"""How many elements lie in each eighth of [0, 1)."""

import torch

from opforge import Op

op = Op(
    schema="histogram(Tensor x) -> Tensor y",
    reference=lambda x: torch.histc(x, 8, 0, 1),
    dtypes=(torch.float32,),
    cases=lambda make: [(make(300).sigmoid(),)],
)
