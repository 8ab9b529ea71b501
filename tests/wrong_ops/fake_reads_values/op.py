# SPDX-License-Identifier: Apache-2.0
"""relu that looks whether anything is negative before it does something.

A Python `if` on values is fine in eager mode. A fake kernel has shapes but no values, so neither
torch.compile nor export get past it.
"""

import torch

from opforge import Op


def reference(x):
    if bool((x < 0).any()):  # wrong: what runs may depend on shapes, not on values
        return torch.relu(x)
    return x * 1


op = Op(
    namespace="wrong_ops",
    schema="fake_reads_values(Tensor x) -> Tensor y",
    reference=reference,
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (33, 65), (4, 128), (2, 3, 17), (1000,)]
    ],
)
