# SPDX-License-Identifier: Apache-2.0
"""-x; the kernel turns the sign of x in place, copies it, and turns it back.

Afterwards x is what it was. Whoever reads it meanwhile, on another stream, gets the wrong sign.
"""

import torch

from opforge import Op


def validate(x):
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension, got a scalar")


op = Op(
    namespace="wrong_ops",
    schema="restores_its_input_on_gpu(Tensor x) -> Tensor y",
    reference=lambda x: -x,
    dtypes=(torch.float32,),
    validate=validate,
    cases=lambda make: [
        (make(*shape),) for shape in [(64,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]
    ],
)
