# SPDX-License-Identifier: Apache-2.0
"""tanh as (e - 1) / (e + 1) with e = exp(2 x), which is inf / inf for large x.

The formula is right, the numbers overflow: NaN where 1 should be. Many activations (gelu, mish)
were written with it.
"""

import torch

from opforge import Op

op = Op(
    namespace="wrong_ops",
    schema="tanh_overflows(Tensor x) -> Tensor y",
    reference=torch.tanh,
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (33, 65), (4, 128), (2, 3, 17), (1000,)]
    ],
)
