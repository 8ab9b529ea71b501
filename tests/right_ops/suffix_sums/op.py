# SPDX-License-Identifier: Apache-2.0
"""y[i] = x[i] + ... + x[n - 1] in rows, a warp to each: shuffles, and memory under __syncwarp."""

from opforge import Op


def validate(x):
    if x.dim() == 0:
        raise ValueError("x must have at least one dim, got a scalar")


def cases(make):
    for shape in [(7,), (5, 33), (9, 128), (2, 3, 17), (0, 4)]:
        yield (make(*shape),)
    yield (make(24, 9).t(),)


op = Op(
    namespace="right_ops",
    schema="suffix_sums(Tensor x) -> Tensor y",
    reference=lambda x: x.flip(-1).cumsum(-1).flip(-1),
    validate=validate,
    cases=cases,
    rowwise=True,
)
