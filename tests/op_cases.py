# SPDX-License-Identifier: Apache-2.0
"""What the tests of the built-in ops are run over."""

from __future__ import annotations

import pytest
import torch

from opforge import discover
from opforge.op import Op

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
# "sim" is the CUDA kernels on CPU tensors: the fixture `device` turns the simulator on.
SIM, CUDA = (pytest.param(n, marks=getattr(pytest.mark, n)) for n in ("sim", "cuda"))
OPS = discover.builtin_names()

# A way to write a kernel each: reglu, say, is swiglu with another function, and vector_add
# scale_bias_relu with another.
KERNELS = (
    "bias_dropout_residual",
    "cross_entropy",
    "cumsum",
    "group_norm",
    "layer_norm",
    "reduce_sum",
    "rope",
    "scale_bias_relu",
    "stencil2d",
    "swiglu",
)

each_op = pytest.mark.parametrize("name", OPS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
each_device = pytest.mark.parametrize("device", ["cpu", SIM, CUDA], indirect=True)
each_real_device = pytest.mark.parametrize("device", ["cpu", CUDA], indirect=True)


def nightly_but(*chosen: str, of: list[str] = OPS) -> pytest.MarkDecorator:
    """Every op, those that are not chosen only with --nightly."""
    return pytest.mark.parametrize(
        "name", [n if n in chosen else pytest.param(n, marks=pytest.mark.nightly) for n in of]
    )


def record(name: str) -> Op:
    return discover.find(name)
