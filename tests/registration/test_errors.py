# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments: the message names the argument, what was received and the remedy."""

from __future__ import annotations

import pytest
import torch
from op_cases import SIM

import opforge

x = torch.randn(4, 8)
bias = torch.randn(8)

WRONG = {
    "a list": (
        lambda: opforge.relu([1.0]),
        TypeError,
        r"opforge\.relu: x must be a torch\.Tensor, got list",
    ),
    "an integer tensor": (
        lambda: opforge.relu(torch.arange(3)),
        TypeError,
        r"x has dtype torch\.int64; supported: float32, float16, bfloat16, float64\. "
        r"Convert it with x\.to\(torch\.float32\)",
    ),
    "a complex tensor": (
        lambda: opforge.reduce_sum(torch.zeros(3, dtype=torch.complex64)),
        TypeError,
        r"x has dtype torch\.complex64; supported: float32",
    ),
    "a sparse tensor": (
        lambda: opforge.relu(torch.eye(3).to_sparse()),
        TypeError,
        r"x has layout torch\.sparse_coo; .*x\.to_dense\(\)",
    ),
    "mixed dtypes": (
        lambda: opforge.vector_add(x, bias.double()),
        TypeError,
        r"a is torch\.float32 but b is torch\.float64; convert one, as in b\.to\(a\.dtype\)",
    ),
    "shapes that do not broadcast": (
        lambda: opforge.vector_add(x, torch.randn(7)),
        ValueError,
        r"a has shape \(4, 8\) and b has \(7,\), which do not broadcast",
    ),
    "a bias of another length": (
        lambda: opforge.scale_bias_relu(x, torch.randn(7), 1.0),
        ValueError,
        r"bias must have shape \(8,\), one value per column of x, which has shape \(4, 8\); "
        r"got \(7,\)",
    ),
    "a bias of another rank": (
        lambda: opforge.scale_bias_relu(x, torch.randn(1, 8), 1.0),
        ValueError,
        r"bias must have shape \(8,\).*got \(1, 8\)",
    ),
    "a bias of another dtype": (
        lambda: opforge.scale_bias_relu(x, bias.half(), 1.0),
        TypeError,
        r"x is torch\.float32 but bias is torch\.float16",
    ),
    "a scalar x": (
        lambda: opforge.scale_bias_relu(torch.tensor(1.0), bias, 1.0),
        ValueError,
        r"x must have at least one dimension, got a scalar",
    ),
    "a scale that is text": (
        lambda: opforge.scale_bias_relu(x, bias, "2"),
        TypeError,
        r"scale must be a number, got str",
    ),
    "a dim out of range": (
        lambda: opforge.reduce_sum(x, 2),
        ValueError,
        r"dim 2 is out of range for x of shape \(4, 8\); it must be from -2 to 1",
    ),
    "a dim twice": (
        lambda: opforge.reduce_sum(x, (1, -1)),
        ValueError,
        r"dim \(1, -1\) names a dimension twice",
    ),
    "another device": (
        lambda: opforge.vector_add(x, torch.randn(8, device="meta")),
        ValueError,
        r"all tensors must be on one device, got a on cpu, b on meta\. Move them",
    ),
}


@pytest.mark.parametrize("device", ["cpu", SIM], indirect=True)
@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
def test_wrong_arguments(what, grad, device):
    call, kind, text = WRONG[what]
    x.requires_grad_(grad)
    try:
        with pytest.raises(kind, match=text):
            call()
    finally:
        x.requires_grad_(False)


def test_wrong_arguments_while_compiling():
    with pytest.raises(Exception, match=r"bias must have shape \(8,\)"):
        torch.compile(opforge.scale_bias_relu, fullgraph=True)(x, torch.randn(7), 1.0)


@pytest.mark.cuda
def test_mixed_devices_name_both():
    with pytest.raises(ValueError, match=r"a on cuda:0, b on cpu"):
        opforge.vector_add(x.cuda(), x)
