# SPDX-License-Identifier: Apache-2.0
"""Linear layers under autocast: cast as torch casts the inputs of matrix products."""

from __future__ import annotations

import copy

import pytest
import torch

import opforge

X, WEIGHT = torch.randn(5, 16), torch.randn(8, 16)
CALLS = {
    "linear": lambda x: opforge.linear(x, WEIGHT, torch.randn(8), "gelu"),
    "gated_linear": lambda x: opforge.gated_linear(x, WEIGHT),
    "mlp": lambda x: opforge.mlp(x, WEIGHT, WEIGHT.t(), residual=torch.randn(5, 16)),
    "mlp in FP8": lambda x: opforge.mlp(x, WEIGHT, WEIGHT.t(), fp8="row"),
    "grouped_linear": lambda x: opforge.grouped_linear(
        x, WEIGHT[None], torch.tensor([5], dtype=torch.int32)
    ),
    "fp8_linear": lambda x: opforge.fp8_linear(x, WEIGHT),
    "matmul": lambda x: opforge.matmul(x, WEIGHT.t()),
}


@pytest.mark.parametrize("name", CALLS)
def test_results_have_the_dtype_of_autocast(name):
    for x in (X, X.bfloat16()):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert CALLS[name](x).dtype == torch.bfloat16
    assert CALLS[name](X).dtype == torch.float32


def test_float64_is_never_narrowed():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert opforge.linear(X.double(), WEIGHT.double()).dtype == torch.float64


@pytest.mark.parametrize("options", [{}, {"main_grad": True}])
def test_a_layer_trains_as_torchs(options):
    ours = opforge.nn.Linear(16, 8, **options)
    theirs = torch.nn.Linear(16, 8)
    theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
    for layer in (ours, theirs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(X)
        assert y.dtype == torch.bfloat16
        y.float().square().sum().backward()
    grad = ours.weight.main_grad if options else ours.weight.grad
    assert grad.dtype == torch.float32
    torch.testing.assert_close(grad, theirs.weight.grad, rtol=0.05, atol=0.1)
