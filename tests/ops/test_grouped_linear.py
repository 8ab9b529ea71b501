# SPDX-License-Identifier: Apache-2.0
"""grouped_linear: groups of any size, what is outside them, wrong offsets, compiled code."""

from __future__ import annotations

import pytest
import torch
from op_cases import SIM, each_device, each_real_device
from torch import nn

import opforge

SHORT = [torch.bfloat16, torch.float16]
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 2e-5, torch.float64: 1e-12}

# Ends of groups: around a tile's rows, empty, of one row, all rows in one; and for more than the
# lanes of a warp.
ENDS = {
    "around a tile": [127, 255, 384, 384 + 129],
    "empty and single": [0, 1, 1, 2, 70, 70],
    "all in one": [0, 0, 150, 150],
    "rows left": [3, 40, 41],
    "none": [0, 0],
    "many": sorted([7 * i % 90 for i in range(75)]),
}


def make(*shape, dtype=torch.float32, device="cpu", seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(device, dtype).requires_grad_()


def inputs(ends, features, outputs, dtype, device, rows=None, transposed=False):
    rows = max(ends) + 13 * (len(ends) == 3) if rows is None else rows
    x = make(rows, features, dtype=dtype, device=device)
    shape = (features, outputs) if transposed else (outputs, features)
    weights = make(len(ends), *shape, dtype=dtype, device=device, seed=1)
    biases = make(len(ends), outputs, dtype=dtype, device=device, seed=2)
    return x, weights, torch.tensor(ends, dtype=torch.int32, device=device), biases


def by_linear(x, weights, ends, biases):
    """A torch.nn.functional.linear for each group, in float64."""
    x, weights, biases = (t.detach().double().requires_grad_() for t in (x, weights, biases))
    parts, first = [], 0
    for e, last in enumerate(ends):
        parts.append(nn.functional.linear(x[first:last], weights[e], biases[e]))
        first = last
    zeros = torch.zeros(x.shape[0] - first, weights.shape[1], dtype=x.dtype, device=x.device)
    return torch.cat([*parts, zeros]), (x, weights, biases)


def near(got, right, dtype):
    scale = max(1.0, float(right.detach().abs().max())) if right.numel() else 1.0
    tolerance = TOLERANCE[dtype] * scale
    torch.testing.assert_close(got.double(), right.double(), atol=tolerance, rtol=0)


def compare(args, dtype, transposed=False, **options):
    x, weights, offsets, biases = args
    given = weights.transpose(1, 2) if transposed else weights
    y = opforge.grouped_linear(x, given, offsets, biases, **options)
    right, leaves = by_linear(x, given, offsets.tolist(), biases)
    near(y, right, dtype)
    grad = make(*y.shape, dtype=dtype, device=x.device, seed=3).detach()
    got = torch.autograd.grad(y, [x, weights, biases], grad)
    wanted = torch.autograd.grad(right, leaves, grad.double())
    for name, a, b in zip(("x", "weights", "biases"), got, wanted, strict=True):
        b = b.transpose(1, 2) if transposed and name == "weights" else b
        near(a, b, dtype)


@each_device
@pytest.mark.parametrize("kind", ENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=["bfloat16", "float64"])
def test_each_group_is_a_linear_layer(kind, dtype, device):
    compare(inputs(ENDS[kind], 72, 40, dtype, device), dtype)


@each_device
def test_weights_may_be_stored_the_other_way_round(device):
    args = inputs(ENDS["rows left"], 72, 136, torch.bfloat16, device, transposed=True)
    compare(args, torch.bfloat16, transposed=True)


@each_device
@pytest.mark.parametrize("dtype", SHORT, ids=["bfloat16", "float16"])
def test_sizes_that_the_copy_engine_cannot_read(dtype, device):
    compare(inputs(ENDS["rows left"], 31, 29, dtype, device), dtype)


@each_device
def test_tf32_is_for_float32(device):
    args = inputs(ENDS["around a tile"], 40, 72, torch.float32, device)
    x, weights, offsets, biases = args
    y = opforge.grouped_linear(x, weights, offsets, biases, tf32=True)
    right, _ = by_linear(x, weights, offsets.tolist(), biases)
    torch.testing.assert_close(y.double(), right, atol=5e-2, rtol=0)
    grad = make(*y.shape, device=device, seed=3).detach()
    right, leaves = by_linear(x, weights, offsets.tolist(), biases)
    wanted = torch.autograd.grad(right, leaves, grad.double())
    for a, b in zip(torch.autograd.grad(y, [x, weights, biases], grad), wanted, strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-1, rtol=0)
    with pytest.raises(TypeError, match=r"tf32=True is for float32, but x is torch\.float64"):
        opforge.grouped_linear(x.double(), weights.double(), offsets, tf32=True)


# A shape for each tile that the host code chooses from: rows, features, outputs, ends.
TILES = {
    "large": (2048, 64, 1536, [1000, 2048]),
    "pingpong": (300, 72, 264, [1, 131, 300]),
    "short": (64, 64, 8192, [9, 9, 20, 21, 22, 40, 50, 60]),
}


@pytest.mark.parametrize(
    "device", [SIM, pytest.param("cuda", marks=pytest.mark.cuda)], indirect=True
)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("tile", TILES)
def test_tiles_of_rows(tile, transposed, device):
    rows, features, outputs, ends = TILES[tile]
    args = inputs(ends, features, outputs, torch.bfloat16, device, rows, transposed)
    compare(args, torch.bfloat16, transposed)


@each_device
def test_values_of_one_group_reach_no_other(device):
    """NaN in a group, and in the rows after the last one, stays there."""
    ends = [5, 70, 70, 133]
    x, weights, offsets, biases = inputs(ends, 72, 40, torch.bfloat16, device, 150)
    right = opforge.grouped_linear(x, weights, offsets, biases)
    grad = torch.ones_like(right)
    wanted = torch.autograd.grad(right, [x, weights, biases], grad)
    bad = torch.zeros(150, dtype=torch.bool, device=device)
    bad[5:70] = bad[133:] = True
    spoilt = torch.where(bad[:, None], torch.nan, x.detach()).requires_grad_()
    y = opforge.grouped_linear(spoilt, weights, offsets, biases)
    grad = torch.where(bad[:, None], torch.nan, grad)
    got = torch.autograd.grad(y, [spoilt, weights, biases], grad)
    assert y[5:70].isnan().all()
    assert torch.equal(y[~bad], right[~bad])
    assert torch.equal(y[133:], torch.zeros_like(y[133:]))
    assert torch.equal(got[0][~bad], wanted[0][~bad])
    assert torch.equal(got[0][133:], torch.zeros_like(got[0][133:]))
    for a, b in zip(got[1:], wanted[1:], strict=True):
        assert a[1].isnan().all()
        assert torch.equal(a[[0, 2, 3]], b[[0, 2, 3]])


@each_device
def test_the_same_bits_for_int64_offsets_and_every_time(device):
    x, weights, offsets, biases = inputs(ENDS["empty and single"], 72, 40, torch.bfloat16, device)

    def run(offsets):
        y = opforge.grouped_linear(x, weights, offsets, biases)
        return [y, *torch.autograd.grad(y.sum(), [x, weights, biases])]

    first = run(offsets)
    for again in (run(offsets), run(offsets.long()), run(offsets.repeat_interleave(2)[::2])):
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_wrong_offsets_are_refused_on_the_cpu():
    x, weights = torch.randn(9, 4), torch.randn(3, 5, 4)
    with pytest.raises(ValueError, match=r"offsets holds 3 at 1, where only 4 .* to 9"):
        opforge.grouped_linear(x, weights, torch.tensor([4, 3, 9]))
    with pytest.raises(ValueError, match=r"offsets holds 10 at 2, where only 5 .* to 9"):
        opforge.grouped_linear(x, weights, torch.tensor([4, 5, 10]))
    with pytest.raises(ValueError, match=r"offsets holds -1 at 0, where only 0 .* to 9"):
        opforge.grouped_linear(x, weights, torch.tensor([-1, 5, 9]))


@each_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_kernels_clamp_wrong_offsets(dtype, device):
    """An end before the group before it, or after the rows. Nothing else is read or written."""
    args = inputs([0] * 4, 72, 40, dtype, device, 150)
    op = opforge.discover.find("grouped_linear")  # does not look at values
    wrong = torch.tensor([-7, 140, 20, 2**31 - 1], dtype=torch.int32, device=device)
    clamped = torch.tensor([0, 140, 140, 150], dtype=torch.int32, device=device)
    results = []
    for offsets in (wrong, clamped):
        y = op(args[0], args[1], offsets, args[3], False)
        leaves = [args[0], args[1], args[3]]
        results.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_errors_name_the_argument_and_the_remedy():
    x, weights, offsets = torch.randn(9, 4), torch.randn(3, 5, 4), torch.tensor([2, 4, 9])

    def refuses(error, match, *args, **options):
        with pytest.raises(error, match=match):
            opforge.grouped_linear(*args, **options)

    refuses(ValueError, r"x must be \(rows, features\).*flatten", x[None], weights, offsets)
    refuses(ValueError, r"weights must be \(groups, .*torch.stack", x, weights[0], offsets)
    refuses(
        ValueError,
        r"the last dim of x and of weights must agree.*weights.transpose\(1, 2\)",
        x,
        weights.transpose(1, 2),
        offsets,
    )
    refuses(ValueError, r"offsets must have a value for each group", x, weights, offsets[:2])
    refuses(ValueError, r"offsets must have a value for each group", x, weights, offsets[None])
    refuses(TypeError, r"offsets.*torch.float32", x, weights, offsets.float())
    refuses(ValueError, r"biases must have shape \(3, 5\)", x, weights, offsets, torch.randn(5))
    refuses(TypeError, r"weights is torch.float64.*weights.to", x, weights.double(), offsets)
    meta = offsets.to("meta")
    refuses((TypeError, ValueError, RuntimeError), r"offsets.*meta", x, weights, meta)


@each_real_device
def test_compiled_code_takes_other_offsets(device):
    torch.compiler.reset()
    x, weights, offsets, biases = inputs([3, 40, 41], 24, 16, torch.float32, device)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def run(x, weights, offsets, biases):
        return opforge.grouped_linear(x * 2, weights, offsets, biases).relu()

    for ends in ([3, 40, 41], [0, 54, 54], [1, 2, 3]):
        offsets = torch.tensor(ends, dtype=torch.int32, device=device)
        with torch.compiler.set_stance("default" if ends[0] == 3 else "fail_on_recompile"):
            y = run(x, weights, offsets, biases)
        right = by_linear(x * 2, weights, ends, biases)[0].relu()
        near(y, right, torch.float32)
        got = torch.autograd.grad(y.sum(), weights)[0]
        wanted = opforge.grouped_linear(x * 2, weights, offsets, biases).relu()
        assert torch.equal(got, torch.autograd.grad(wanted.sum(), weights)[0])


def test_gradients_numerically():
    x, weights, offsets, biases = inputs([2, 2, 5], 3, 4, torch.float64, "cpu", 6)
    run = lambda *a: opforge.grouped_linear(a[0], a[1], offsets, a[2])  # noqa: E731
    assert torch.autograd.gradcheck(run, (x, weights, biases))
    assert torch.autograd.gradgradcheck(run, (x, weights, biases))


@each_real_device
def test_the_module_is_a_linear_layer_for_each_group(device):
    module = opforge.nn.GroupedLinear(12, 7, 3, device=device)
    layers = [nn.Linear(12, 7, device=device) for _ in range(3)]
    module.weights.data = torch.stack([layer.weight.detach() for layer in layers])
    module.biases.data = torch.stack([layer.bias.detach() for layer in layers])
    x, ends = torch.randn(20, 12, device=device), [4, 4, 20]
    y = module(x, torch.tensor(ends, device=device))
    right = torch.cat([layers[0](x[:4]), layers[2](x[4:])])
    torch.testing.assert_close(y, right, atol=1e-5, rtol=1e-5)
    assert opforge.nn.GroupedLinear(12, 7, 3, bias=False).biases is None
    assert repr(module) == "GroupedLinear(12, 7, groups=3, bias=True)"
