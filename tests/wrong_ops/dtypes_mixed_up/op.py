# SPDX-License-Identifier: Apache-2.0
"""a * b, whose kernel looks at the dtype of a and reads b as if it had the same.

The record refuses two dtypes, but its checks run only when the kernel has refused; a float64
tensor left over from numpy is read as float32.
"""

from opforge import Op


def validate(a, b):
    if a.shape != b.shape:
        raise ValueError(
            f"a has shape {tuple(a.shape)} and b has {tuple(b.shape)}; they must be equal"
        )
    if a.dtype != b.dtype:
        raise TypeError(f"a is {a.dtype} but b is {b.dtype}; convert one, as in b.to(a.dtype)")


op = Op(
    namespace="wrong_ops",
    schema="dtypes_mixed_up(Tensor a, Tensor b) -> Tensor c",
    reference=lambda a, b: a * b,
    validate=validate,
    cases=lambda make: [
        (make(*shape), make(*shape)) for shape in [(7,), (33, 65), (4, 128), (2, 3, 17), (1000,)]
    ],
)
