# SPDX-License-Identifier: Apache-2.0
"""x * weight + bias over the last dim; the kernel takes weight for contiguous.

Layouts of activations are handled with care, while parameters are thought to be contiguous; a
slice of a fused weight, or every other element of one, is not.
"""

from opforge import Op


def reference(x, weight, bias):
    return x * weight if bias is None else x * weight + bias


def validate(x, weight, bias):
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        if x.dim() == 0 or tuple(tensor.shape) != (x.shape[-1],):
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)} and x has "
                f"{tuple(x.shape)}; {name} needs one value per column of x"
            )
        if tensor.dtype != x.dtype:
            raise TypeError(f"x is {x.dtype} but {name} is {tensor.dtype}")


def cases(make):
    for shape in [(7,), (5, 33), (4, 128), (2, 3, 17)]:
        yield make(*shape), make(shape[-1]), make(shape[-1])
    yield make(64, 9), make(9), None


op = Op(
    namespace="wrong_ops",
    schema="strided_weight_misread(Tensor x, Tensor weight, Tensor? bias) -> Tensor y",
    reference=reference,
    validate=validate,
    cases=cases,
)
