# SPDX-License-Identifier: Apache-2.0
"""x * scale for float32 and float64; the kernel tells them apart by their size alone.

An int32 tensor has elements of four bytes, so its bits are taken for floats. The numbers that
come out look like numbers.
"""

import torch

from opforge import Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 2.0), ((2, 3, 17), 0.1)]:
        yield make(*shape), scale
    yield make(1000), 3.0


op = Op(
    namespace="wrong_ops",
    schema="dtype_reinterpreted(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: x * scale,
    dtypes=(torch.float32, torch.float64),
    cases=cases,
)
