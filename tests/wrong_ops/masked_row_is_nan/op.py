# SPDX-License-Identifier: Apache-2.0
"""softmax for masked scores: a row of nothing but -inf should be all 0, and is NaN.

The largest element of such a row is -inf, and -inf - -inf is NaN. Padding at the end of a batch
makes rows like that, and one of them turns the loss into NaN.
"""

import torch

from opforge import Op


def reference(x):
    """softmax over the last dim; a row that is masked as a whole gives 0."""
    masked = (x == -torch.inf).all(-1, keepdim=True)
    return torch.where(masked, 0, torch.softmax(torch.where(masked, 0, x), -1))


def validate(x):
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension, got a scalar")


op = Op(
    namespace="wrong_ops",
    schema="masked_row_is_nan(Tensor x) -> Tensor y",
    reference=reference,
    validate=validate,
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]
    ],
)
