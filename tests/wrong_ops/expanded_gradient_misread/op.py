# SPDX-License-Identifier: Apache-2.0
"""x minus the mean of its row, whose backward copies grad_y only if a stride is larger than 1.

.sum() hands back one number with stride 0, which is not larger than 1 either: the kernel reads
a whole row from where one number lies. It works in every test whose loss is not a plain sum.
"""

from opforge import Backward, Op


def centre(x):
    return x - x.sum(-1, keepdim=True) / x.shape[-1]


def validate(x):
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension, got a scalar")


op = Op(
    namespace="wrong_ops",
    schema="expanded_gradient_misread(Tensor x) -> Tensor y",
    reference=centre,
    backward=Backward("expanded_gradient_misread_backward(Tensor grad_y) -> Tensor grad_x", centre),
    validate=validate,
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]
    ],
)
