# SPDX-License-Identifier: Apache-2.0
"""What the cheats pretend to be."""

import torch

from opforge import Op

op = Op(
    schema="honest(Tensor x) -> Tensor y",
    reference=lambda x: 2 * x,
    dtypes=(torch.float32,),
    sized=lambda make, *shape: (make(*shape),),
)
