# SPDX-License-Identifier: Apache-2.0
"""x * weight + bias over the last dim: weight and bias may each be None."""

from opforge import Op


def reference(x, weight, bias):
    y = x if weight is None else x * weight
    return y.clone() if bias is None else y + bias


def validate(x, weight, bias):
    if x.dim() == 0:
        raise ValueError("x must have at least one dim, got a scalar")
    for name, given in (("weight", weight), ("bias", bias)):
        if given is not None and tuple(given.shape) != (x.shape[-1],):
            raise ValueError(
                f"{name} must have a value for each column of x, which has shape "
                f"{tuple(x.shape)}; got {tuple(given.shape)}"
            )
        if given is not None and given.dtype != x.dtype:
            raise TypeError(f"x is {x.dtype} but {name} is {given.dtype}; convert one of them")


def cases(make):
    for shape in [(7,), (5, 33), (2, 3, 17), (0, 4)]:
        columns = shape[-1]
        yield make(*shape), make(columns), make(columns)
        yield make(*shape), None, make(columns)
        yield make(*shape), make(columns), None
    yield make(4, 65), None, None


op = Op(
    namespace="right_ops",
    schema="weighted_columns(Tensor x, Tensor? weight, Tensor? bias) -> Tensor y",
    reference=reference,
    validate=validate,
    cases=cases,
)
