# SPDX-License-Identifier: Apache-2.0
"""relu written as `x >= 0 ? x : 0`, which is 0 for NaN.

The textbook line, and what fmaxf does on a GPU. torch.relu keeps NaN, so that a model that has
broken down shows it; here it goes on training on zeros.
"""

import torch

from opforge import Op

op = Op(
    namespace="wrong_ops",
    schema="nan_swallowed(Tensor x) -> Tensor y",
    reference=torch.relu,
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (33, 65), (4, 128), (2, 3, 17), (1000,)]
    ],
)
