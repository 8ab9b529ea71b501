# SPDX-License-Identifier: Apache-2.0
"""x minus the mean of its row, whose backward checks no more than the last stride of grad_y.

A stride of 1 is taken for contiguous memory. What torch.cat hands back is a slice of wider rows:
its last stride is 1, and from the second row on the kernel reads the neighbour's gradient.
"""

from opforge import Backward, Op


def centre(x):
    return x - x.sum(-1, keepdim=True) / x.shape[-1]


def validate(x):
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension, got a scalar")


op = Op(
    namespace="wrong_ops",
    schema="narrow_gradient_misread(Tensor x) -> Tensor y",
    reference=centre,
    backward=Backward("narrow_gradient_misread_backward(Tensor grad_y) -> Tensor grad_x", centre),
    validate=validate,
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]
    ],
)
