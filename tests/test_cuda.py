# SPDX-License-Identifier: Apache-2.0
"""What only a GPU can show: streams, graphs, huge tensors, memory, launch overrides."""

from __future__ import annotations

import time

import pytest
import torch

import opforge
from opforge.errors import KernelUnavailable

pytestmark = pytest.mark.cuda


def everything(x, bias):
    """All ops, forward and backward; returns what they made."""
    x, bias = x.detach().requires_grad_(), bias.detach().requires_grad_()
    y = opforge.scale_bias_relu(opforge.relu(opforge.vector_add(x, bias)), bias, 0.5)
    total = opforge.reduce_sum(y, 0)
    total.backward(torch.ones_like(total))
    return [y.detach(), total.detach(), x.grad, bias.grad]


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    return torch.randn(513, 1027, device="cuda"), torch.randn(1027, device="cuda")


def test_side_stream_is_ordered_and_nothing_waits_for_the_device(tensors):
    everything(*tensors)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    torch.cuda._sleep(2_000_000_000)  # about a second on the default stream
    started = time.monotonic()
    with torch.cuda.stream(side):
        x, bias = (torch.randn_like(t) for t in tensors)
        got = everything(x, bias)
        side.synchronize()
    took = time.monotonic() - started
    assert took < 0.5, "work on a side stream waited for the default stream"
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(got, everything(x, bias), strict=True))


def test_graph_capture_and_replay_on_new_data(tensors):
    x, bias = (t.clone() for t in tensors)
    everything(x, bias)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        everything(x, bias)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = everything(x, bias)
    x.copy_(torch.randn_like(x))
    bias.copy_(torch.randn_like(bias))
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, everything(x, bias), strict=True))


def test_first_call_during_capture_says_what_to_do(monkeypatch):
    from opforge import discover
    from opforge.build import load

    op = discover.find("relu")
    monkeypatch.setattr(load, "_attempts", {})
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(KernelUnavailable, match="run it once before capturing"),
        torch.cuda.graph(graph),
    ):
        load.ensure(op, "relu", "cuda")


@pytest.mark.parametrize("count", [2**31 - 1, 2**31, 2**31 + 1])
def test_beyond_two_to_the_31_elements(count):
    x = torch.randn(1 << 20, device="cuda", dtype=torch.bfloat16).repeat(2049)[:count]
    tail = slice(count - 5000, count)
    assert torch.equal(opforge.relu(x)[tail], torch.relu(x[tail]))
    assert torch.equal(opforge.vector_add(x, x)[tail], x[tail] + x[tail])
    ones = torch.ones_like(x)
    torch.testing.assert_close(
        opforge.reduce_sum(ones).double().item(), float(count), rtol=4e-3, atol=0
    )
    cols = 1 << 15
    rows = count // cols
    matrix, bias = x[: rows * cols].view(rows, cols), x[:cols].clone()
    y = opforge.scale_bias_relu(matrix, bias, 0.5)
    right = torch.relu(torch.addcmul(bias.float(), matrix[-1].float(), torch.tensor(0.5).cuda()))
    assert torch.equal(y[-1], right.bfloat16())
    grad = ones[: rows * cols].view(rows, cols)
    grad_x, grad_bias = torch.ops.opforge.scale_bias_relu_backward(grad, y, 0.5)
    assert torch.equal(grad_x[-1], torch.where(y[-1] <= 0, 0.0, 0.5).bfloat16())
    right = (y > 0).sum(0)
    torch.testing.assert_close(grad_bias.double(), right.double(), rtol=4e-3, atol=0)


def test_few_elements_far_apart():
    base = torch.zeros(2**31 + 64, device="cuda", dtype=torch.bfloat16)
    x = base[:: 2**31]  # two elements, 2^31 apart
    x.copy_(torch.tensor([-1.0, 2.0]))
    assert opforge.relu(x).tolist() == [0.0, 2.0]
    assert opforge.reduce_sum(x).item() == 1.0


def test_out_of_memory_is_torchs_own_error_and_the_next_call_works():
    a = torch.zeros(1 << 20, 1, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match=r"opforge\.vector_add"):
        opforge.vector_add(a, a.t())
    assert opforge.vector_add(a, a).sum().item() == 0.0


def test_current_device_is_restored(tensors):
    before = torch.cuda.current_device()
    everything(*tensors)
    assert torch.cuda.current_device() == before


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU: cannot use another one")
def test_another_device_than_the_current_one(tensors):
    x, bias = (t.to("cuda:1") for t in tensors)
    for got, right in zip(everything(x, bias), everything(*tensors), strict=True):
        assert got.device == torch.device("cuda:1")
        assert torch.equal(got.cpu(), right.cpu())
    assert torch.cuda.current_device() == 0


def test_poisoned_memory_has_no_effect(tensors):
    right = everything(*tensors)
    for _ in range(3):
        blocks = [torch.full((1 << n,), float("nan"), device="cuda") for n in range(8, 22)]
        del blocks  # the allocator hands these out next
        assert all(torch.equal(a, b) for a, b in zip(everything(*tensors), right, strict=True))


def test_a_thousand_repeats_are_bitwise_equal(tensors):
    right = everything(*tensors)
    for _ in range(1000):
        got = everything(*tensors)
    assert all(torch.equal(a, b) for a, b in zip(got, right, strict=True))


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


def test_architecture_missing_from_the_binary_lists_both(tmp_path, monkeypatch):
    import json
    import shutil

    from opforge import discover
    from opforge.build import load

    op = discover.find("relu")
    opforge.relu(torch.zeros(1, device="cuda"))
    library = load.loaded_path(op, "cuda")
    shutil.copy(library, tmp_path / "relu-cuda.so")
    source = next(
        p for p in (library.with_suffix(".json"), library.parent / "manifest.json") if p.exists()
    )
    manifest = json.loads(source.read_text())
    manifest["archs"] = ["8.0"]
    manifest["library"] = "relu-cuda.so"
    (tmp_path / "relu-cuda.json").write_text(json.dumps(manifest))
    monkeypatch.setenv("OPFORGE_PREBUILT", str(tmp_path))
    if torch.cuda.get_device_capability()[0] == 8:
        pytest.skip("this GPU runs 8.0 code")
    with pytest.raises(KernelUnavailable, match=r"built for 8\.0, but the GPU is \d+\.\d"):
        load.find(op, "cuda")
