# SPDX-License-Identifier: Apache-2.0
"""A scale of 0 is taken for one that was not given.

`scale or 1.0` in Python, `if (scale)` in C++.
"""

from opforge import Backward, Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 2.0)]:
        yield make(*shape), scale


op = Op(
    namespace="wrong_ops",
    schema="scale_of_zero(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: x * scale,
    composed=lambda x, scale: x * (scale or 1.0),
    backward=Backward(
        "scale_of_zero_backward(Tensor grad_y, float scale) -> Tensor grad_x",
        lambda grad_y, scale: grad_y * scale,
        composed=lambda grad_y, scale: grad_y * (scale or 1.0),
    ),
    cases=cases,
)
