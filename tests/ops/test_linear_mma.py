# SPDX-License-Identifier: Apache-2.0
"""linear, gated_linear and linear_dact on GPUs that are not Hopper, simulated: kernels for
mma.sync."""

from __future__ import annotations

import pytest
import torch
from linear_layers import ACTIVATIONS, near
from torch.nn import functional

import opforge
from opforge import sim

pytestmark = pytest.mark.sim
SHORT = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
# The simulator takes minutes to compile the units of the ops beside linear.
NIGHTLY = pytest.mark.nightly
SIZES = [(70, 24, 40), (130, 136, 144), (1, 8, 8), (7, 31, 29)]


def drawn(*shape, dtype=torch.bfloat16, scale=1.0):
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


def amid_nan(x, at=8):
    """x in the middle of a matrix of NaN, whose rows are aligned like x alone."""
    rows, cols = x.shape
    around = torch.full((rows + 2, -(-cols // 8) * 8 + 2 * at), float("nan"), dtype=x.dtype)
    inside = around[1 : rows + 1, at : at + cols]
    inside.copy_(x)
    return inside


def on_a100(run, seed=1, **options):
    """What ``run`` returns there, with threads and blocks in any order."""
    with sim.active(device=sim.A100, seed=seed, **options):
        return run()


def kernels_of(run, device):
    """The names of the kernels that run."""
    with sim.active("race", traffic=True, device=device) as calls:
        run()
    return [launch.kernel for call in calls for launch in call.launches]


@SHORT
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_values_and_gradients(m, k, n, activation, dtype):
    tensors = [drawn(m, k, dtype=dtype), drawn(n, k, dtype=dtype, scale=k**-0.5)]
    tensors += [drawn(n, dtype=dtype), drawn(m, n, dtype=dtype)]
    tensors = [t.requires_grad_() for t in tensors]
    leaves = [t.detach().double().requires_grad_() for t in tensors]
    grad = drawn(m, n, dtype=dtype)

    def run():
        x, weight, bias, residual = tensors
        y = opforge.linear(x, weight, bias, activation, residual)
        return y, torch.autograd.grad(y, tensors, grad)

    x, weight, bias, residual = leaves
    right = ACTIVATIONS[activation](functional.linear(x, weight, bias)) + residual
    expected = torch.autograd.grad(right, leaves, grad.double())
    y, found = on_a100(run)
    near(y, right, dtype)
    for got, one in zip(found, expected, strict=True):
        near(got, one, dtype)


@pytest.mark.parametrize("outputs", [40, 27])
def test_operands_in_any_order_and_unaligned(outputs):
    x, weight = drawn(136, 33), drawn(outputs, 33)
    right = torch.relu(functional.linear(x.double(), weight.double()))
    for one in (x, x.t().contiguous().t()):
        for other in (weight, weight.t().contiguous().t()):
            y = on_a100(lambda a=one, b=other: opforge.linear(a, b, None, "relu"))
            near(y, right, torch.bfloat16)


@pytest.mark.parametrize("transposed", [False, True])
def test_nothing_beyond_an_operand_counts(transposed):
    x, weight = drawn(37, 45), drawn(21, 45)
    given = [amid_nan(t.t()).t() if transposed else amid_nan(t) for t in (x, weight)]
    y = on_a100(lambda: opforge.linear(*given))
    near(y, functional.linear(x.double(), weight.double()), torch.bfloat16)


def test_many_tiles_of_more_than_two_dims():
    x, weight, bias = drawn(3, 100, 72), drawn(300, 72, scale=0.1), drawn(300)
    right = functional.linear(x.double(), weight.double(), bias.double())
    near(on_a100(lambda: opforge.linear(x, weight, bias)), right, torch.bfloat16)


def test_factor_limits_and_a_strided_residual():
    x, weight, residual = drawn(33, 24), drawn(40, 24), drawn(33, 80)[:, ::2]
    options = {"scale": -1.5, "clamp": (-0.5, 0.25)}
    y = on_a100(lambda: opforge.linear(x, weight, None, "silu", residual, **options))
    z = functional.silu(functional.linear(x.double(), weight.double()))
    near(y, (-1.5 * z).clamp(-0.5, 0.25) + residual.double(), torch.bfloat16)


@pytest.mark.parametrize("k", [24, 29])
def test_tf32(k):
    x, weight, bias = (drawn(*s, dtype=torch.float32) for s in ((140, k), (37, k), (37,)))
    y = on_a100(lambda: opforge.linear(x, weight, bias, "gelu", tf32=True))
    exact = functional.linear(x.double(), weight.double(), bias.double())
    near(y, functional.gelu(exact), torch.float16)
    assert not torch.equal(y, on_a100(lambda: opforge.linear(x, weight, bias, "gelu")))


def test_any_order_of_threads_gives_the_same_bits():
    x, weight = drawn(140, 200), drawn(136, 200)
    results = [on_a100(lambda: opforge.linear(x, weight, None, "gelu"), seed) for seed in (0, 7)]
    assert torch.equal(*results)


def test_what_is_refused():
    x, weight = drawn(4, 6), drawn(8, 6)
    with pytest.raises(ValueError, match="bias must have shape"):
        on_a100(lambda: opforge.linear(x, weight, drawn(4)))
    with pytest.raises(ValueError, match="x and of weight must agree"):
        on_a100(lambda: opforge.linear(x, weight.t()))


@pytest.mark.parametrize(("rows", "features", "outputs"), [(0, 8, 4), (3, 0, 4), (3, 8, 0)])
def test_empty_dims(rows, features, outputs):
    x, weight, bias = drawn(rows, features), drawn(outputs, features), drawn(outputs)
    y = on_a100(lambda: opforge.linear(x, weight, bias))
    torch.testing.assert_close(y, functional.linear(x, weight, bias))


def test_older_gpus_have_the_products_of_torch():
    x, weight = drawn(9, 24), drawn(16, 24)
    turing = sim.Device("T4", capability_major=7, capability_minor=5)
    with sim.active(device=turing):
        y = opforge.linear(x, weight, None, "relu")
    near(y, torch.relu(functional.linear(x.double(), weight.double())), torch.bfloat16)


@NIGHTLY
@pytest.mark.parametrize("k", [40, 130])
def test_no_races_or_uninitialised_memory(k):
    x, weight, bias, residual = drawn(140, k), drawn(136, k), drawn(136), drawn(140, 136)
    run = lambda: opforge.linear(x, weight, bias, "gelu", residual)  # noqa: E731
    right = functional.gelu(functional.linear(x.double(), weight.double(), bias.double()))
    near(on_a100(run, mode="race"), right + residual.double(), torch.bfloat16)


@NIGHTLY
def test_the_gpu_decides_between_the_kernels():
    x, weight = drawn(70, 64), drawn(40, 64)
    run = lambda: opforge.linear(x, weight)  # noqa: E731
    newer = sim.Device("B200", 148, capability_major=10)
    kernels = [kernels_of(run, device) for device in (sim.A100, sim.H200, newer)]
    assert ["ampere" in one for (one,) in kernels] == [True, False, True]
    assert ["hopper" in one for (one,) in kernels] == [False, True, False]


@NIGHTLY
@SHORT
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_a_gated_pair(m, k, n, packed, dtype):
    x, gate, up = (drawn(*s, dtype=dtype, scale=k**-0.25) for s in ((m, k), (n, k), (n, k + 1)))
    up, biases = up[:, 1:], drawn(2 * n, dtype=dtype)
    tensors = [x, torch.cat([gate, up]), biases] if packed else [x, gate, up, *biases.chunk(2)]
    tensors = [t.detach().requires_grad_() for t in tensors]
    leaves = [t.detach().double().requires_grad_() for t in tensors]
    grad = drawn(m, n, dtype=dtype)

    def run():
        x, first, *rest = tensors
        options = (None, *rest) if packed else rest
        with torch.no_grad():
            alone = opforge.gated_linear(x, first, *options)
        y = opforge.gated_linear(x, first, *options)
        return alone, y, torch.autograd.grad(y, tensors, grad)

    if packed:
        gate, up = functional.linear(*leaves).chunk(2, -1)
    else:
        x, *weights = leaves
        gate, up = (functional.linear(x, weights[i], weights[i + 2]) for i in range(2))
    right = functional.silu(gate) * up
    expected = torch.autograd.grad(right, leaves, grad.double())
    alone, y, found = on_a100(run)
    assert torch.equal(alone, y)
    near(y, right, dtype)
    for got, one in zip(found, expected, strict=True):
        near(got, one, dtype)


@NIGHTLY
def test_a_gated_pair_in_tf32():
    x, gate, up = (drawn(*s, dtype=torch.float32) for s in ((140, 24), (72, 24), (72, 24)))
    y = on_a100(lambda: opforge.gated_linear(x, gate, up, tf32=True))
    right = functional.silu(x.double() @ gate.double().t()) * (x.double() @ up.double().t())
    near(y, right, torch.float16)


@NIGHTLY
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("m", "outputs", "n"), SIZES)
def test_gradients_before_an_activation_and_their_sums(m, outputs, n, dtype, gated):
    grad, weight = drawn(m, outputs, dtype=dtype), drawn(outputs, n, dtype=dtype)
    z = drawn(m, n * (1 + gated), dtype=dtype)
    options = {"gated": gated, "with_h": True, "with_sums": True}
    tf32 = dtype == torch.float32
    passed, h, sums = on_a100(
        lambda: opforge.linear_dact(grad, weight, z, "gelu", tf32=tf32, **options)
    )
    leaf = z.double().requires_grad_()
    first, second = leaf.chunk(2, -1) if gated else (leaf, 1.0)
    right = functional.gelu(first) * second
    (expected,) = torch.autograd.grad(right, leaf, grad.double() @ weight.double())
    rough = torch.float16 if tf32 else dtype
    near(passed, expected, rough)
    near(h, right, rough)
    near(sums, expected.sum(0), rough)


@NIGHTLY
def test_the_other_ops_have_no_races():
    x, gate, up, grad = drawn(140, 40), drawn(72, 40), drawn(72, 40), drawn(140, 72)
    tensors = [t.requires_grad_() for t in (x, gate, up)]
    right = functional.silu(x.double() @ gate.double().t()) * (x.double() @ up.double().t())

    def run():
        y = opforge.gated_linear(*tensors)
        return y, torch.autograd.grad(y, tensors, grad)

    y, _ = on_a100(run, mode="race")
    near(y, right, torch.bfloat16)
    weight, z = drawn(72, 136), drawn(140, 136)
    _, _, sums = on_a100(
        lambda: opforge.linear_dact(grad, weight, z, "relu", with_sums=True), mode="race"
    )
    near(sums, ((grad.double() @ weight.double()) * (z > 0)).sum(0), torch.bfloat16)
