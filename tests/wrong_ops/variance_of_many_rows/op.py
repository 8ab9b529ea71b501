# SPDX-License-Identifier: Apache-2.0
"""The variance of each row: in two passes, or in one where long rows keep the whole GPU busy.

The one pass was measured on many rows around 0, where the mean of the squares has digits to spare.
"""

from opforge import Op


def validate(x):
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"x must have rows with an element, got {tuple(x.shape)}")


op = Op(
    namespace="wrong_ops",
    schema="variance_of_many_rows(Tensor x) -> Tensor y",
    reference=lambda x: x.var(-1, correction=0),
    validate=validate,
    cases=lambda make: [(make(*shape),) for shape in [(7,), (5, 33), (4, 128), (2, 3, 17)]],
)
