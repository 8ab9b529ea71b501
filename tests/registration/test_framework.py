# SPDX-License-Identifier: Apache-2.0
"""The built-in ops inside PyTorch: autograd, compile, vmap, autocast, export, modules."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from op_cases import OPS, each_device, each_op, each_real_device, record

import opforge
from opforge.op import Make, as_tuple
from opforge.truth.cases import cast, differentiable


@each_real_device
@each_op
def test_the_three_call_paths_agree(name, device):
    op = record(name)
    registered = getattr(torch.ops.opforge, name)
    for case in op.iter_cases(Make(torch.float32, device, requires_grad=True)):
        first, second = cast(case, torch.float32), cast(case, torch.float32)
        with torch.no_grad():
            plain = as_tuple(op(*case))
        eager = as_tuple(op(*first))
        through_dispatcher = as_tuple(registered(*second))[: len(op.outputs)]
        for a, b, c in zip(plain, eager, through_dispatcher, strict=True):
            assert torch.equal(a, b)
            assert torch.equal(a, c)
            assert a.stride() == b.stride() == c.stride()
        wanted = [output.requires_grad for output in eager]  # bytes do not
        assert wanted == [output.requires_grad for output in through_dispatcher]
        if not any(wanted):
            continue
        grads = [torch.randn_like(o) if w else None for o, w in zip(plain, wanted, strict=True)]
        for outputs in (eager, through_dispatcher):
            pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if g is not None]
            torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
        for a, b in zip(differentiable(first), differentiable(second), strict=True):
            assert (a.grad is None) == (b.grad is None)
            assert a.grad is None or torch.equal(a.grad, b.grad)


@each_real_device
def test_per_sample_gradients(device):
    x, bias = torch.randn(4, 5, 8, device=device), torch.randn(8, device=device)

    def loss(b, sample):
        return opforge.scale_bias_relu(sample, b, 0.5).sum()

    got = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(bias, x)
    right = torch.stack([torch.func.grad(loss)(bias, sample) for sample in x])
    torch.testing.assert_close(got, right)


@each_real_device
def test_jacobians(device):
    x = torch.randn(6, device=device, dtype=torch.float64)
    for ours, theirs in (
        (opforge.relu, torch.relu),
        (lambda t: opforge.vector_add(t, t * t), None),
    ):
        theirs = theirs or (lambda t: t + t * t)
        for transform in (torch.func.jacrev, lambda f: torch.func.jacrev(torch.func.jacrev(f))):
            torch.testing.assert_close(transform(ours)(x), transform(theirs)(x))
    _, pull = torch.func.vjp(opforge.relu, x)
    (rows,) = torch.vmap(pull)(torch.eye(6, device=device, dtype=torch.float64))
    torch.testing.assert_close(rows, torch.diag((x > 0).double()))


@each_real_device
def test_checkpointing(device):
    x = torch.randn(4, 8, device=device, requires_grad=True)
    bias = torch.randn(8, device=device, requires_grad=True)
    run = torch.utils.checkpoint.checkpoint
    run(opforge.scale_bias_relu, x, bias, 0.5, use_reentrant=False).sum().backward()
    again, bias2 = x.detach().requires_grad_(), bias.detach().requires_grad_()
    opforge.scale_bias_relu(again, bias2, 0.5).sum().backward()
    assert torch.equal(x.grad, again.grad)
    assert torch.equal(bias.grad, bias2.grad)


@each_device
def test_modules(device):
    module = opforge.nn.ScaleBiasReLU(8, 0.5, device=device)
    torch.nn.init.normal_(module.bias)
    x = torch.randn(4, 8, device=device)
    right = torch.relu(x * 0.5 + module.bias)
    torch.testing.assert_close(module(x), right)
    assert list(module.state_dict()) == ["bias"]
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    other = opforge.nn.ScaleBiasReLU(8, 0.5, device=device)
    other.load_state_dict(torch.load(buffer))
    for twin in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(x), module(x))
    assert repr(module) == "ScaleBiasReLU(8, scale=0.5)"
    assert torch.equal(opforge.nn.ReLU()(x), torch.relu(x))
    with pytest.raises(ValueError, match="features must be at least 1, got 0"):
        opforge.nn.ScaleBiasReLU(0)


def test_discovered_ops_and_public_names_agree():
    for name in OPS:
        function = getattr(opforge, name)
        assert function.__name__ == name
        assert function.__doc__
        assert record(name).name == name
        assert name in dir(opforge)
    with pytest.raises(AttributeError, match="no attribute 'no_such_op'"):
        opforge.no_such_op  # noqa: B018


def test_cost_counts_every_tensor_once():
    cost = record("scale_bias_relu").cost(torch.zeros(16, 8), torch.zeros(8), 1.0)
    assert cost.bytes == 4 * (16 * 8 + 8 + 16 * 8)
    assert cost.operations == 3 * 16 * 8


@each_real_device
def test_forward_mode_is_refused_rather_than_wrong(device):
    import torch.autograd.forward_ad as fwd

    x = torch.randn(4, device=device)
    with (
        fwd.dual_level(),
        pytest.raises(NotImplementedError, match=r"relu does not support forward-mode"),
    ):
        opforge.relu(fwd.make_dual(x, torch.ones_like(x)))
    with fwd.dual_level():
        assert torch.equal(opforge.relu(x), torch.relu(x))
    with pytest.raises(NotImplementedError, match=r"relu does not support forward-mode"):
        torch.func.jvp(opforge.relu, (x,), (torch.ones_like(x),))
