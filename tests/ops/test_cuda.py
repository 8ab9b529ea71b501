# SPDX-License-Identifier: Apache-2.0
"""What only a GPU can show, beside the rows of `opforge check`: launch overrides."""

from __future__ import annotations

import pytest
import torch

import opforge

pytestmark = pytest.mark.cuda


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    return torch.randn(513, 1027, device="cuda"), torch.randn(1027, device="cuda")


def test_out_of_memory_is_torchs_own_error_and_the_next_call_works():
    a = torch.zeros(1 << 20, 1, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match=r"opforge\.vector_add"):
        opforge.vector_add(a, a.t())
    assert opforge.vector_add(a, a).sum().item() == 0.0


@pytest.mark.parametrize("block", [32, 128, 512, 1024])
def test_launch_overrides_change_no_elementwise_bit(tensors, block):
    x, bias = tensors
    for op in ("relu", "vector_add", "scale_bias_relu"):
        arguments = {"relu": (x,), "vector_add": (x, bias), "scale_bias_relu": (x, bias, 0.5)}[op]
        run = getattr(opforge, op)
        right = run(*arguments)
        for vec in (None, 1):
            with opforge.launch_config(op, block=block, vec=vec):
                assert torch.equal(run(*arguments), right)
    for rows in (1, 64, 4096):
        with opforge.launch_config(opforge.reduce_sum, block=min(block, 512), rows=rows):
            for dim in (0, 1, None):
                torch.testing.assert_close(
                    opforge.reduce_sum(x, dim).double(),
                    x.double().sum() if dim is None else x.double().sum(dim),
                    atol=1e-3,
                    rtol=1e-5,
                )


def test_launch_overrides_are_checked():
    for bad, text in [
        ({"block": 48}, "block=48 must be a multiple of 32 from 32 to 1024"),
        ({"block": 2048}, "block=2048 must be a multiple of 32 from 32 to 1024"),
        ({"block": 96}, "power of two"),
        ({"rows": 0}, "rows=0 must be at least 1"),
        ({"vec": 3}, "vec=3 must be 1"),
    ]:
        with pytest.raises(ValueError, match=text), opforge.launch_config("relu", **bad):
            pass
