# SPDX-License-Identifier: Apache-2.0
"""The sum of a * conj(b) in each row: complex tensors, read as pairs of numbers."""

import torch

from opforge import Op


def validate(a, b):
    if a.dim() == 0 or a.shape != b.shape:
        raise ValueError(
            f"a and b must have rows, and one shape; they have {tuple(a.shape)}, {tuple(b.shape)}"
        )
    if a.dtype != b.dtype:
        raise TypeError(f"a is {a.dtype} but b is {b.dtype}; convert one of them")


def cases(make):
    def draw(*shape):
        return torch.complex(make(*shape).real, make(*shape).real)

    for shape in [(7,), (5, 33), (2, 3, 17), (0, 4), (3, 0), (2, 500)]:
        yield draw(*shape), draw(*shape)
    yield draw(9, 4).conj(), draw(9, 4)  # which is a flag until somebody reads it
    yield draw(4, 9).t(), draw(4, 9).t()


op = Op(
    namespace="right_ops",
    schema="conjugate_dots(Tensor a, Tensor b) -> Tensor y",
    reference=lambda a, b: (a * b.conj()).sum(-1),
    dtypes=(torch.complex64, torch.complex128),
    validate=validate,
    cases=cases,
    rowwise=True,
)
