# SPDX-License-Identifier: Apache-2.0
"""relu, whose kernel keeps x on the side instead of asking autograd to save it.

The backward looks up the sign of x in a table of its own. When x is changed in place in between,
autograd's version check knows nothing of it: the gradient is wrong, silently.
"""

import torch

from opforge import Backward, Op

op = Op(
    namespace="wrong_ops",
    schema="keeps_a_reference(Tensor x) -> Tensor y",
    reference=torch.relu,
    backward=Backward(
        "keeps_a_reference_backward(Tensor grad_y, Tensor y) -> Tensor grad_x",
        lambda grad_y, y: torch.where(y <= 0, 0, grad_y),
    ),
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (33, 65), (4, 128), (2, 3, 17), (1000,)]
    ],
)
