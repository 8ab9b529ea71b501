# SPDX-License-Identifier: Apache-2.0
"""rms_norm that takes any eps.

0 divides by zero for a row of zeros, a negative one takes the root of a negative number, NaN is
NaN: all of them are typing errors in a config file, and all of them train for a while.
"""

import torch

from opforge import Op


def reference(x, eps):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + eps)


def validate(x, eps):  # wrong: says nothing about eps
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension, got a scalar")


op = Op(
    namespace="wrong_ops",
    schema="eps_unchecked(Tensor x, float eps) -> Tensor y",
    reference=reference,
    validate=validate,
    cases=lambda make: [
        (make(*shape), 1e-5) for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]
    ],
)
