# SPDX-License-Identifier: Apache-2.0
"""sqrt(1 + x * x), where the square is rounded to a 16-bit dtype: float16 overflows from 256 on.

The steps of the formula were separate kernels once, and the fused one kept their types. The
result is a number that float16 holds, and comes out as inf.
"""

import torch

from opforge import Op

op = Op(
    namespace="wrong_ops",
    schema="square_in_half(Tensor x) -> Tensor y",
    reference=lambda x: torch.hypot(x, torch.ones_like(x)),
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (33, 65), (4, 128), (2, 3, 17), (1000,)]
    ],
)
