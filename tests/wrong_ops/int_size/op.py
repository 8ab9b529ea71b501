# SPDX-License-Identifier: Apache-2.0
"""The number of columns is an int: of a row of 2^31 elements nothing is written.

No test has memory for such a row in every dtype; the compiler knows without one.
"""

from opforge import Op


def validate(x):
    if x.dim() != 2:
        raise ValueError(f"x has {x.dim()} dims, of shape {tuple(x.shape)}; it needs two")


def cases(make):
    for shape in [(7, 5), (33, 65), (4, 128)]:
        yield (make(*shape),)


op = Op(
    namespace="wrong_ops",
    schema="int_size(Tensor x) -> Tensor y",
    reference=lambda x: x * 2,
    validate=validate,
    cases=cases,
)
