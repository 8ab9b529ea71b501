# SPDX-License-Identifier: Apache-2.0
"""softmax that does not subtract the largest element before exp.

exp overflows from 89 on in float32, and the row becomes NaN. Random test inputs are about 1 in
size; the logits of a trained model are not.
"""

import torch

from opforge import Op


def validate(x):
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension, got a scalar")


op = Op(
    namespace="wrong_ops",
    schema="softmax_without_max(Tensor x) -> Tensor y",
    reference=lambda x: torch.softmax(x, -1),
    validate=validate,
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]
    ],
)
