# SPDX-License-Identifier: Apache-2.0
"""The forward has offsets of 64 bits, the backward has ints for those into the gradient.

A loss on a slice of a large tensor hands back a gradient with the strides of that tensor, however
few elements there are. The wrapped offset points in front of it.
"""

from opforge import Backward, Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 2.0), ((2, 3, 17), 0.1)]:
        yield make(*shape), scale
    yield make(1000), 3.0


op = Op(
    namespace="wrong_ops",
    schema="int_offset_in_gradient(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: x * scale,
    backward=Backward(
        "int_offset_in_gradient_backward(Tensor grad_y, float scale) -> Tensor grad_x",
        lambda grad_y, scale: grad_y * scale,
    ),
    cases=cases,
)
