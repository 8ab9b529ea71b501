# SPDX-License-Identifier: Apache-2.0
"""Leaves the answer where the input was."""

import torch

from opforge import Op

op = Op(
    schema="input_mutation(Tensor x) -> Tensor y",
    reference=lambda x: 2 * x,
    dtypes=(torch.float32,),
    sized=lambda make, *shape: (make(*shape),),
)
