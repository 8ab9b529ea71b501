# SPDX-License-Identifier: Apache-2.0
"""The kernel reads from where the storage of x begins, not from where x does.

The two differ for views such as x[1:]. Bindings that hand the storage's pointer to a kernel, or
rebuild a tensor from it, forget the offset.
"""

from opforge import Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 2.0), ((2, 3, 17), 0.1)]:
        yield make(*shape), scale
    yield make(1000), 3.0


op = Op(
    namespace="wrong_ops",
    schema="ignores_offset(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: x * scale,
    cases=cases,
)
