# SPDX-License-Identifier: Apache-2.0
"""x + bias, whose kernel trusts that bias is as long as a row of x.

The record's validate() knows better, but it runs only with the reference and after a kernel has
refused. This one never does: it adds what lies behind the end of bias.
"""

from opforge import Op


def validate(x, bias):
    if x.dim() == 0 or tuple(bias.shape) != (x.shape[-1],):
        raise ValueError(
            f"bias has shape {tuple(bias.shape)} and x has {tuple(x.shape)}; "
            "bias needs one value per column of x"
        )
    if bias.dtype != x.dtype:
        raise TypeError(f"x is {x.dtype} but bias is {bias.dtype}")


def cases(make):
    for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]:
        yield make(*shape), make(shape[-1])


op = Op(
    namespace="wrong_ops",
    schema="shapes_unchecked(Tensor x, Tensor bias) -> Tensor y",
    reference=lambda x, bias: x + bias,
    validate=validate,
    cases=cases,
)
