# SPDX-License-Identifier: Apache-2.0
"""One more than x."""

import torch

from opforge import Op

op = Op(
    schema="increment(Tensor x) -> Tensor y",
    reference=lambda x: x + 1,
    dtypes=(torch.float32,),
    cases=lambda make: [(make(100),)],
)
