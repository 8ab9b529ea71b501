# SPDX-License-Identifier: Apache-2.0
"""Launches an empty kernel with any grid, block and dynamic shared memory."""

import torch

from opforge import Op

op = Op(
    schema="launch_limits(Tensor x, int[] grid, int[] block, int shared) -> Tensor y",
    reference=lambda x, grid, block, shared: x.clone(),
    dtypes=(torch.float32,),
)
