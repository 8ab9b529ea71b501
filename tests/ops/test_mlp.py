# SPDX-License-Identifier: Apache-2.0
"""mlp, linear_dact and their modules beside the rows of `opforge check`: against torch in float64,
what is kept for the backward, how many kernels run, states of other modules, what is refused."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from linear_layers import ACTIVATIONS, each_device, near
from op_cases import each_dtype
from torch import nn
from torch.nn import functional

import opforge
from opforge import sim

FORMS = ("plain", "separate", "packed")
each_form = pytest.mark.parametrize("form", FORMS)


def drawn(device, form, dtype=torch.float64, rows=70, features=24, hidden=40, biases=True):
    """The tensor arguments of mlp by name, as leaves."""
    generator = torch.Generator().manual_seed(rows + hidden)

    def one(*shape, scale=1.0):
        values = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        return values.to(device, dtype).requires_grad_()

    both = 2 * hidden if form == "packed" else hidden
    named = {
        "x": one(rows, features),
        "up_weight": one(both, features, scale=features**-0.5),
        "down_weight": one(features, hidden, scale=hidden**-0.5),
        "residual": one(rows, features),
    }
    if biases:
        named |= {"up_bias": one(both), "down_bias": one(features)}
    if form == "separate":
        named["gate_weight"] = one(hidden, features, scale=features**-0.5)
        if biases:
            named["gate_bias"] = one(hidden)
    return named


def formula(activation, **named):
    """mlp by torch."""
    x, act = named["x"], ACTIVATIONS[activation]
    h = functional.linear(x, named["up_weight"], named.get("up_bias"))
    hidden = named["down_weight"].shape[1]
    if "gate_weight" in named:
        h = act(functional.linear(x, named["gate_weight"], named.get("gate_bias"))) * h
    elif h.shape[-1] == 2 * hidden:
        gate, up = h.chunk(2, -1)
        h = act(gate) * up
    else:
        h = act(h)
    y = functional.linear(h, named["down_weight"], named.get("down_bias"))
    return y + named["residual"] if "residual" in named else y


def agree(named, activation, dtype, tf32=False):
    y = opforge.mlp(**named, activation=activation, tf32=tf32)
    wide = {name: t.detach().double().requires_grad_() for name, t in named.items()}
    right = formula(activation, **wide)
    rough = torch.float16 if tf32 else dtype
    near(y, right, rough)
    grad = torch.randn_like(y)
    found = torch.autograd.grad(y, list(named.values()), grad)
    expected = torch.autograd.grad(right, list(wide.values()), grad.double())
    for got, want in zip(found, expected, strict=True):
        near(got, want, rough)


@each_device
@each_dtype
@each_form
def test_it_is_that_of_torch(form, dtype, device):
    agree(drawn(device, form, dtype), "silu", dtype)


@each_device
@each_form
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation, form, device):
    agree(drawn(device, form, torch.bfloat16, biases=False), activation, torch.bfloat16)


@each_device
@each_form
def test_tf32_and_unaligned_rows(form, device):
    agree(drawn(device, form, torch.float32), "gelu", torch.float32, tf32=True)
    odd = drawn(device, form, torch.bfloat16, 33, 7, 13)
    agree(odd, "gelu_tanh", torch.bfloat16)


@each_form
def test_gradcheck(form):
    named = drawn("cpu", form, rows=4, features=3, hidden=5)

    def run(*tensors):
        return opforge.mlp(**dict(zip(named, tensors, strict=True)), activation="gelu_tanh")

    assert torch.autograd.gradcheck(run, list(named.values()))
    assert torch.autograd.gradgradcheck(run, list(named.values()))


@each_form
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_only_what_requires_a_gradient_gets_one(activation, form):
    named = drawn("cpu", form, rows=5, features=3, hidden=4)
    y = opforge.mlp(**named, activation=activation)
    full = torch.autograd.grad(y.sum(), list(named.values()))
    for kept, right in zip(named, full, strict=True):
        alone = {name: t if name == kept else t.detach() for name, t in named.items()}
        y = opforge.mlp(**alone, activation=activation)
        (found,) = torch.autograd.grad(y.sum(), alone[kept])
        torch.testing.assert_close(found, right)


@each_form
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_nothing_is_kept_but_the_inputs_and_the_activations_argument(activation, form):
    named = drawn("cpu", form, torch.bfloat16)
    saved = []

    def pack(tensor):
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        opforge.mlp(**named, activation=activation)
    known = {t.data_ptr() for t in named.values()}
    assert named["residual"].data_ptr() not in {t.data_ptr() for t in saved}
    kept = [tuple(t.shape) for t in saved if t.data_ptr() not in known]
    assert kept == [(70, 40 if form == "plain" else 80)]


@each_form
def test_compiled_in_one_graph(form):
    named = drawn("cpu", form, torch.float32)
    compiled = torch.compile(opforge.mlp, backend="aot_eager", fullgraph=True)
    results = []
    for run in (compiled, opforge.mlp):
        y = run(**named, activation="silu")
        results.append([y, *torch.autograd.grad(y.square().sum(), list(named.values()))])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.nightly
@pytest.mark.sim
@pytest.mark.parametrize("form", ["plain", "packed"])
def test_the_backward_begins_with_one_kernel(form):
    """It makes the gradient of z, h and, without a gate, the sums of 64 rows each."""
    named = drawn("cpu", form, torch.bfloat16, features=64)
    y = opforge.mlp(**named, activation="gelu")
    z = torch.randn(70, 80 if form == "packed" else 40).bfloat16()
    with sim.active(traffic=True) as calls:
        opforge.linear_dact(
            *(torch.randn_like(y), named["down_weight"].detach(), z, "gelu"),
            gated=form == "packed",
            with_h=True,
            with_sums=form == "plain",
        )
    product, *rest = [launch for call in calls for launch in call.launches]
    assert "hopper_product" in product.kernel
    assert len(rest) == (form == "plain")  # the sum of the sums
    sums = 2 * 40 * 4 if form == "plain" else 0
    assert product.distinct_written == (z.numel() + 70 * 40) * 2 + sums


def test_what_is_refused():
    x, up, down = torch.randn(4, 6), torch.randn(8, 6), torch.randn(5, 8)
    run = opforge.mlp
    with pytest.raises(ValueError, match=r"x and of up_weight must agree.*pass up_weight\.t\(\)"):
        run(x, up.t(), down)
    with pytest.raises(ValueError, match=r"up_weight makes 8 values, but down_weight takes 5"):
        run(x, up, down.t())
    with pytest.raises(ValueError, match=r"one shape, got gate_weight \(7, 6\) and up_weight \(8"):
        run(x, up, down, gate_weight=torch.randn(7, 6))
    with pytest.raises(ValueError, match=r"must make the 8 values.*got up_weight \(7, 6\)"):
        run(x, up[:7], down, gate_weight=up[:7])
    with pytest.raises(ValueError, match="gate_bias needs gate_weight"):
        run(x, up, down, gate_bias=torch.randn(8))
    with pytest.raises(ValueError, match=r"up_bias must have shape \(8,\)"):
        run(x, up, down, torch.randn(5))
    with pytest.raises(ValueError, match=r"down_bias must have shape \(5,\).*got \(8,\)"):
        run(x, up, down, None, torch.randn(8))
    with pytest.raises(ValueError, match=r"residual must have the shape of the result, \(4, 5\)"):
        run(x, up, down, residual=x)
    with pytest.raises(ValueError, match=r"activation must be one of None, 'relu'.*got 'swish'"):
        run(x, up, down, activation="swish")
    with pytest.raises(TypeError, match=r"down_weight is torch\.float64; convert one, as in down"):
        run(x, up, down.double())
    with pytest.raises(TypeError, match="tf32=True is for float32"):
        run(x.double(), up.double(), down.double(), tf32=True)
    with pytest.raises(ValueError, match=r"z must have shape \(4, 8\)"):
        opforge.linear_dact(torch.randn(4, 5), down, torch.randn(4, 7), "gelu")


@each_device
@each_form
@pytest.mark.parametrize(("rows", "features", "hidden"), [(0, 8, 4), (3, 0, 4), (3, 8, 0)])
def test_empty_dims(rows, features, hidden, form, device):
    def one(*shape):
        return torch.randn(shape, device=device, requires_grad=True)

    both = 2 * hidden if form == "packed" else hidden
    named = {"x": one(rows, features), "up_weight": one(both, features)}
    named |= {"down_weight": one(5, hidden), "down_bias": one(5)}
    if form == "separate":
        named["gate_weight"] = one(hidden, features)
    y = opforge.mlp(**named)
    torch.testing.assert_close(y, formula("gelu", **named))
    grads = torch.autograd.grad(y.sum(), list(named.values()))
    assert [g.shape for g in grads] == [t.shape for t in named.values()]
    assert torch.equal(grads[3], torch.full((5,), float(rows), device=device))


def test_modules_compute_the_ops():
    x = torch.randn(3, 8)
    linear = opforge.nn.Linear(8, 5, activation="gelu")
    plain = nn.Linear(8, 5)
    plain.load_state_dict(linear.state_dict())
    residual = torch.randn(3, 5)
    torch.testing.assert_close(linear(x, residual), functional.gelu(plain(x)) + residual)
    block = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8))
    mlp = opforge.nn.MLP(8, 12, activation="relu")
    mlp.load_state_dict(block.state_dict())
    torch.testing.assert_close(mlp(x, x), block(x) + x)
    gated = opforge.nn.GatedMLP(8, 12, activation="gelu_tanh")
    gate = functional.gelu(gated.gate_proj(x), approximate="tanh")
    torch.testing.assert_close(gated(x), gated.down_proj(gate * gated.up_proj(x)))


def test_states_of_other_modules():
    x = torch.randn(3, 8)
    mlp = opforge.nn.MLP(8, 12, 5)
    assert list(mlp.state_dict()) == ["up.weight", "up.bias", "down.weight", "down.bias"]
    other = nn.ModuleDict({"fc1": nn.Linear(8, 12), "fc2": nn.Linear(12, 5)})
    outer = nn.ModuleDict({"mlp": mlp})  # a prefix
    outer.load_state_dict(nn.ModuleDict({"mlp": other}).state_dict())
    right = other["fc2"](functional.gelu(other["fc1"](x)))
    torch.testing.assert_close(mlp(x), right)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*\"1\.weight\""):
        mlp.load_state_dict({**mlp.state_dict(), "1.weight": x})
    for bias in (False, True):
        separate = opforge.nn.GatedMLP(8, 12, bias=bias)
        packed = opforge.nn.GatedMLP(8, 12, bias=bias, packed=True)
        assert "gate_proj.weight" in separate.state_dict()
        assert packed.state_dict()["gate_up_proj.weight"].shape == (24, 8)
        packed.load_state_dict(separate.state_dict())
        torch.testing.assert_close(packed(x), separate(x))
        again = opforge.nn.GatedMLP(8, 12, bias=bias)
        again.load_state_dict(packed.state_dict())
        assert torch.equal(again(x), separate(x))


def test_modules_are_copied_and_shown():
    x = torch.randn(3, 8)
    modules = [
        opforge.nn.Linear(8, 5, False, activation="relu", tf32=True),
        opforge.nn.MLP(8, 12, 5, activation="silu"),
        opforge.nn.GatedMLP(8, 12, packed=True),
    ]
    for module in modules:
        for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            twin.load_state_dict(module.state_dict())
            assert torch.equal(twin(x), module(x))
    shown = [repr(module).splitlines() for module in modules]
    assert shown[0] == [
        "Linear(in_features=8, out_features=5, bias=False, activation='relu', tf32=True)"
    ]
    assert shown[1][1].strip() == "activation='silu'"
    assert shown[2][1].strip() == "packed=True"
    with pytest.raises(ValueError, match=r"opforge\.nn\.MLP: activation must be one of"):
        opforge.nn.MLP(8, 12, activation="swish")
