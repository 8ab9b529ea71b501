# SPDX-License-Identifier: Apache-2.0
"""x * x, whose backward detaches x: right once, silently wrong when differentiated again.

Backwards are written with detached tensors, or without gradients, to save memory. A gradient
penalty then lacks the part that goes through x.
"""

from opforge import Op

op = Op(
    namespace="wrong_ops",
    schema="detached_in_backward(Tensor x) -> Tensor y",
    reference=lambda x: x * x,
    backward=lambda grad_y, x: 2 * grad_y * x.detach(),  # wrong: x
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (33, 65), (4, 128), (2, 3, 17), (1000,)]
    ],
)
