# SPDX-License-Identifier: Apache-2.0
"""Twice x by way of a copy in memory of its own; a thread also loads the next element of the copy.

The element past the end of the workspace is never used.
"""

import torch

from opforge import Op


def validate(x):
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension, got a scalar")


op = Op(
    namespace="wrong_ops",
    schema="reads_past_its_workspace_on_gpu(Tensor x) -> Tensor y",
    reference=lambda x: x + x,
    dtypes=(torch.float32,),
    validate=validate,
    cases=lambda make: [
        (make(*shape),) for shape in [(64,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]
    ],
)
