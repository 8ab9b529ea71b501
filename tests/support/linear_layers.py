# SPDX-License-Identifier: Apache-2.0
"""What the tests of linear layers with activations share."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

ACTIVATIONS = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda z: functional.gelu(z, approximate="tanh"),
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    None: lambda z: z,
}
# The simulator takes minutes to compile the units.
each_device = pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("sim", marks=[pytest.mark.sim, pytest.mark.nightly]),
        pytest.param("cuda", marks=pytest.mark.cuda),
    ],
    indirect=True,
)
ROUGH = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5, torch.float64: 1e-12}


def near(got, right, dtype):
    """Raise unless results are the truth but for some roundings of the dtype."""
    rough = ROUGH[dtype]
    size = float(right.detach().abs().max())
    torch.testing.assert_close(got.double(), right, rtol=rough, atol=rough * size)
