# SPDX-License-Identifier: Apache-2.0
"""(x - zero) * scale of bytes: integers in, floats out, and so neither a NaN nor a gradient."""

import torch

from opforge import Op


def validate(x, scale, zero):
    if not 0 <= zero <= 255:
        raise ValueError(f"zero must be a byte, 0 to 255, got {zero}")


def cases(make):
    for shape in [(7,), (5, 33), (2, 3, 17), (0, 4), ()]:
        yield torch.arange(torch.Size(shape).numel()).mul(37 + make.seed).view(shape), 0.1, 128
    yield torch.arange(200).view(8, 25).t(), 3.0, 0


def bytes_of(make):
    for x, *rest in cases(make):
        yield x.to(make.device, make.dtype), *rest


op = Op(
    namespace="right_ops",
    schema="dequantize(Tensor x, float scale, int zero) -> Tensor y",
    reference=lambda x, scale, zero: (x.float() - zero) * scale,
    dtypes=(torch.uint8, torch.int8),
    validate=validate,
    cases=bytes_of,
    pointwise=True,
)
