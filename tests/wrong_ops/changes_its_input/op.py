# SPDX-License-Identifier: Apache-2.0
"""scale * relu(x), whose kernel rectifies x in place before it scales it into the result.

A step that was once a kernel of its own, in place, is merged with the next one. The result is
right, also the second time, but the caller's tensor has lost its negative values.
"""

import torch

from opforge import Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 2.0), ((2, 3, 17), 0.1)]:
        yield make(*shape), scale
    yield make(1000), 3.0


op = Op(
    namespace="wrong_ops",
    schema="changes_its_input(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: torch.relu(x) * scale,
    cases=cases,
)
