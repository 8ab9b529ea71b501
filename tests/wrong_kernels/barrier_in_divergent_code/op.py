# SPDX-License-Identifier: Apache-2.0
"""Every tile of 64 elements the other way round."""

import torch

from opforge import Op

op = Op(
    schema="reverse_tiles(Tensor x) -> Tensor y",
    reference=lambda x: torch.cat([tile.flip(0) for tile in x.split(64)]),
    dtypes=(torch.float32,),
    cases=lambda make: [(make(150),)],
)
