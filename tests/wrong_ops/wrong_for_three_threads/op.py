# SPDX-License-Identifier: Apache-2.0
"""With three threads the last part of the work is left out.

Parts are as long as the work divided by the threads, rounded down.
"""

import torch

from opforge import Backward, Op


def forward(x):
    flat = x.reshape(-1)
    y = torch.zeros_like(flat)
    threads = torch.get_num_threads() if flat.numel() > 10_000 else 1
    part = flat.numel() // threads
    for i in range(threads):
        y[i * part : (i + 1) * part] = flat[i * part : (i + 1) * part].square()
    return y.reshape(x.shape)


def backward(grad_y, x):
    return 2 * x * grad_y


def cases(make):
    for shape in [(7,), (33, 65), (4, 128), (2, 3, 17)]:
        yield (make(*shape),)


op = Op(
    namespace="wrong_ops",
    schema="wrong_for_three_threads(Tensor x) -> Tensor y",
    reference=torch.square,
    composed=forward,
    backward=Backward(
        "wrong_for_three_threads_backward(Tensor grad_y, Tensor x) -> Tensor grad_x",
        backward,
        composed=backward,
    ),
    cases=cases,
)
