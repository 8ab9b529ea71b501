# SPDX-License-Identifier: Apache-2.0
"""x * x, whose backward has a path of its own for 16-bit dtypes, and there the 2 is missing.

Fast paths for half precision are written later and by hand. gradcheck needs float64, so the one
path that training uses is the one it never sees.
"""

import torch

from opforge import Op


def backward(grad_y, x):
    if grad_y.dtype in (torch.float16, torch.bfloat16):
        return grad_y * x  # wrong: 2 * grad_y * x
    return 2 * grad_y * x


op = Op(
    namespace="wrong_ops",
    schema="half_gradient_without_factor(Tensor x) -> Tensor y",
    reference=lambda x: x * x,
    backward=backward,
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (33, 65), (4, 128), (2, 3, 17), (1000,)]
    ],
)
