# SPDX-License-Identifier: Apache-2.0
"""With a scale of 1 there is nothing to do, so the kernel returns x itself.

The schema says that the result is new memory. Whoever changes it in place changes x, and
torch.compile, which trusts schemas, reorders the two.
"""

from opforge import Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 1.0), ((2, 3, 17), 0.1)]:
        yield make(*shape), scale
    yield make(1000), 3.0


op = Op(
    namespace="wrong_ops",
    schema="returns_its_input(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: x * scale,
    cases=cases,
)
