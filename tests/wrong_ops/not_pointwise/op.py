# SPDX-License-Identifier: Apache-2.0
"""x minus its largest element, declared to be pointwise, which it is not.

Batching rules are easy to claim. vmap then hands over the whole batch at once, and every sample
is compared with the largest element of all of them.
"""

import torch

from opforge import Op


def reference(x):
    return x - x.amax() if x.numel() else torch.zeros_like(x)


op = Op(
    namespace="wrong_ops",
    schema="not_pointwise(Tensor x) -> Tensor y",
    reference=reference,
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (33, 65), (4, 128), (2, 3, 17), (1000,)]
    ],
    pointwise=True,  # wrong: every result depends on all of x
)
