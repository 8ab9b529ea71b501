# SPDX-License-Identifier: Apache-2.0
"""Returns before it is done: the work goes on elsewhere, where no clock looks."""

import torch

from opforge import Op

op = Op(
    schema="side_stream(Tensor x) -> Tensor y",
    reference=lambda x: 2 * x,
    dtypes=(torch.float32,),
    sized=lambda make, *shape: (make(*shape),),
)
