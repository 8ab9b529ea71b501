# SPDX-License-Identifier: Apache-2.0
"""The logistic function, whose backward writes y * (1 - y) over the saved y.

Memory is saved by reusing what the forward kept. The first backward is right; the caller's y is
gone, and a second backward (retain_graph, gradient checkpoints, two losses) is wrong.
"""

import torch

from opforge import Backward, Op

op = Op(
    namespace="wrong_ops",
    schema="changes_the_saved_tensor(Tensor x) -> Tensor y",
    reference=torch.sigmoid,
    backward=Backward(
        "changes_the_saved_tensor_backward(Tensor grad_y, Tensor y) -> Tensor grad_x",
        lambda grad_y, y: grad_y * (y * (1 - y)),
    ),
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (33, 65), (4, 128), (2, 3, 17), (1000,)]
    ],
)
