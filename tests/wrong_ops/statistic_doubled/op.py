# SPDX-License-Identifier: Apache-2.0
"""A statistic is twice what the record says, and the backward halves it.

Right as long as nobody exchanges one of the two kernels, or runs the reference of one.
"""

import torch

from opforge import Backward, Op


def reference(x):
    return x / x.square().sum(-1, keepdim=True).sqrt()


def length(x):
    return x.detach().square().sum(-1).sqrt()


def gradient(grad_y, y, length):
    along = (grad_y * y).sum(-1, keepdim=True)
    return (grad_y - y * along) / length.unsqueeze(-1)


def cases(make):
    for shape in [(7, 5), (33, 65), (2, 3, 17)]:
        yield (make(*shape),)


op = Op(
    namespace="wrong_ops",
    schema="statistic_doubled(Tensor x) -> (Tensor y, Tensor length)",
    reference=reference,
    statistics={"length": length},
    composed=lambda x: (reference(x), 2 * length(x)),
    backward=Backward(
        "statistic_doubled_backward(Tensor grad_y, Tensor y, Tensor length) -> Tensor grad_x",
        gradient,
        composed=lambda grad_y, y, length: gradient(grad_y, y, length / 2),
    ),
    dtypes=(torch.float32, torch.float64),
    rowwise=True,
    cases=cases,
)
