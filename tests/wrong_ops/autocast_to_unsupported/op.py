# SPDX-License-Identifier: Apache-2.0
"""An op for float32, bfloat16 and float64 whose autocast rule casts to float16.

The rule was copied from a layer that has such a kernel. The op works until somebody turns
autocast on, and then refuses its own arguments.
"""

import torch

from opforge import Op

op = Op(
    namespace="wrong_ops",
    schema="autocast_to_unsupported(Tensor x) -> Tensor y",
    reference=lambda x: x * torch.sigmoid(x),
    dtypes=(torch.float32, torch.bfloat16, torch.float64),
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (33, 65), (4, 128), (2, 3, 17), (1000,)]
    ],
    autocast=torch.float16,  # wrong: not among dtypes
)
