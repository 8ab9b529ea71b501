# SPDX-License-Identifier: Apache-2.0
"""a x b in space: rows of just three, and differences of products that are nearly exact, by fma."""

from opforge import Op


def reference(a, b):
    return a.roll(-1, -1) * b.roll(1, -1) - a.roll(1, -1) * b.roll(-1, -1)


def validate(a, b):
    if a.dim() == 0 or a.shape[-1] != 3 or a.shape != b.shape:
        raise ValueError(
            "a and b must have one shape, and 3 columns; "
            f"they have shapes {tuple(a.shape)} and {tuple(b.shape)}"
        )
    if a.dtype != b.dtype:
        raise TypeError(f"a is {a.dtype} but b is {b.dtype}; convert one of them")


def cases(make):
    for shape in [(3,), (5, 3), (2, 7, 3), (0, 3), (64, 3)]:
        yield make(*shape), make(*shape)
    a = make(40, 3)
    yield a, a * 2 + make(40, 3) / 64  # nearly parallel: little is left of the products
    yield make(3, 9).t(), make(9, 3)


op = Op(
    namespace="right_ops",
    schema="cross_product(Tensor a, Tensor b) -> Tensor y",
    reference=reference,
    validate=validate,
    cases=cases,
    rowwise=True,
)
