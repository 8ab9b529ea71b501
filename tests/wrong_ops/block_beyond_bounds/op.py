# SPDX-License-Identifier: Apache-2.0
"""The largest element of each row; the block grows with the row, up to 1,024 threads.

The kernel was tuned for 512, which __launch_bounds__ says, too: a GPU refuses longer rows.
"""

from opforge import Op


def validate(x):
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"x must have rows of at least one element, got shape {tuple(x.shape)}")


op = Op(
    namespace="wrong_ops",
    schema="block_beyond_bounds(Tensor x) -> Tensor y",
    reference=lambda x: x.amax(-1),
    validate=validate,
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]
    ],
)
