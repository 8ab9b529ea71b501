# SPDX-License-Identifier: Apache-2.0
"""An intermediate result lies in a buffer that all threads share.

Right in every test that has one thread.
"""

import time

import torch

from opforge import Backward, Op

_scratch: dict[tuple[object, ...], torch.Tensor] = {}


def forward(x):
    kept = _scratch.setdefault((x.dtype, *x.shape), torch.empty_like(x).contiguous())
    kept.copy_(x)
    time.sleep(0.001)  # another thread has its turn
    return torch.square(kept)


def backward(grad_y, x):
    return 2 * x * grad_y


def cases(make):
    for shape in [(7,), (33, 65), (4, 128), (2, 3, 17)]:
        yield (make(*shape),)


op = Op(
    namespace="wrong_ops",
    schema="one_scratch_buffer(Tensor x) -> Tensor y",
    reference=torch.square,
    composed=forward,
    backward=Backward(
        "one_scratch_buffer_backward(Tensor grad_y, Tensor x) -> Tensor grad_x",
        backward,
        composed=backward,
    ),
    cases=cases,
)
