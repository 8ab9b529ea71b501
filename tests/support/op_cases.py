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

# These have the kernels of another op with another function in them. The simulator has them at
# night, and that other op by day.
TWINS = {
    "bias_dropout_residual": "dropout",
    "bias_gelu": "scale_bias_relu",
    "fp8_linear": "scaled_linear",
    "gated_linear": "linear",
    "geglu": "reglu",
    "layer_norm": "rms_norm",
    "linear_dact": "linear",
    "log_softmax": "softmax",
    "mlp": "linear",
    "swiglu": "reglu",
}
SIMULATED = [name for name in OPS if name not in TWINS]
# By day, these alone get every row of the quick check: an elementwise op and a reduction.
WHOLE = ("reduce_sum", "scale_bias_relu")

each_op = pytest.mark.parametrize("name", OPS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
each_device = pytest.mark.parametrize("device", ["cpu", SIM, CUDA], indirect=True)
each_real_device = pytest.mark.parametrize("device", ["cpu", CUDA], indirect=True)
# Looking for races takes a build of its own.
each_mode = pytest.mark.parametrize(
    "mode", ["plain", pytest.param("race", marks=pytest.mark.nightly)]
)


def nightly_but(*chosen: str, of: list[str] = OPS) -> pytest.MarkDecorator:
    """Every op, those that are not chosen only with --nightly."""
    return pytest.mark.parametrize(
        "name", [n if n in chosen else pytest.param(n, marks=pytest.mark.nightly) for n in of]
    )


def record(name: str) -> Op:
    return discover.find(name)
