# SPDX-License-Identifier: Apache-2.0
"""bias_dropout_residual beside the ops it is made of, and gradients that are passed on."""

from __future__ import annotations

import pytest
import torch
from op_cases import each_device, each_dtype, record

import opforge
from opforge import sim
from opforge.errors import RecordError
from opforge.op import Backward
from opforge.registration import gradient
from opforge.registration.schema import parse


def inputs(device: str, dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (48, 72)):
    make = opforge.Make(dtype, device, requires_grad=True)
    return make(*shape), make(shape[-1]), make(*shape)


@each_device
@each_dtype
def test_it_drops_what_dropout_drops(dtype, device):
    x, bias, residual = inputs(device, dtype)
    torch.manual_seed(5)
    y = opforge.bias_dropout_residual(x, bias, residual, 0.3)
    torch.manual_seed(5)
    dropped = opforge.dropout(torch.ones_like(x), 0.3) == 0
    assert 0.2 < dropped.double().mean() < 0.4
    assert torch.equal(y[dropped], residual[dropped])
    y.backward(torch.ones_like(y))
    assert torch.equal(x.grad == 0, dropped)
    assert torch.equal(residual.grad, torch.ones_like(y))


@each_device
def test_without_training_it_only_adds(device):
    x, bias, residual = inputs(device)
    for options in ({"training": False}, {"p": 0}):
        y = opforge.bias_dropout_residual(x, bias, residual, **options)
        torch.testing.assert_close(y, residual + (x + bias))
        assert torch.equal(
            opforge.bias_dropout_residual(x, None, residual, **options), residual + x
        )


@pytest.mark.sim
@each_dtype
@pytest.mark.nightly
def test_the_cpu_gives_the_bits_of_the_gpu(dtype):
    seed = torch.tensor([3])
    for shape in [(48, 72), (5, 33)]:
        x, bias, residual = inputs("cpu", dtype, shape)
        ours = record("bias_dropout_residual")(x, bias, residual, seed, 0.3)
        with sim.active():
            theirs = record("bias_dropout_residual")(x, bias, residual, seed, 0.3)
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("path", ["eager", "create_graph", "compile", "func"])
def test_the_gradient_of_the_residual_is_that_of_y(path):
    x, bias, residual = (t.detach() for t in inputs("cpu"))
    seed, incoming = torch.tensor([3]), torch.randn_like(x)
    op = record("bias_dropout_residual")

    def layer(residual, x=x):
        return op(x, bias, residual, seed, 0.3)

    if path == "func":
        _, pull = torch.func.vjp(layer, residual)
        (got,) = pull(incoming)
    else:
        run = (
            torch.compile(layer, backend="aot_eager", fullgraph=True)
            if path == "compile"
            else layer
        )
        leaves = residual.requires_grad_(), x.clone().requires_grad_()
        y = run(*leaves)
        got, _ = torch.autograd.grad(y, leaves, incoming, create_graph=path == "create_graph")
    assert torch.equal(got, incoming)
    if path == "eager":  # no copy
        assert got.data_ptr() == incoming.data_ptr()


def test_a_frozen_layer_passes_the_gradient_on_without_a_kernel():
    x, bias, residual = (t.detach() for t in inputs("cpu"))
    y = opforge.bias_dropout_residual(x, bias, residual.requires_grad_(), 0.3)
    with torch.profiler.profile() as profile:
        y.backward(torch.ones_like(y))
    called = [e.name for e in profile.events()]
    assert "opforge::bias_dropout_residual_backward" not in called, called
    assert torch.equal(residual.grad, torch.ones_like(y))
    x.requires_grad_()
    y = opforge.bias_dropout_residual(x, bias, residual, 0.3)
    with torch.profiler.profile() as profile:
        y.backward(torch.ones_like(y))
    assert "opforge::bias_dropout_residual_backward" in [e.name for e in profile.events()]


@pytest.mark.parametrize(
    ("shared", "said"),
    [
        ({"b": "y"}, "shares the gradient of 'b' as 'y'"),
        ({"b": "grad_z"}, "a gradient that it returns or gets (grad_x, grad_y)"),
        ({"z": "grad_y"}, "that must be an input (x, b, scale)"),
    ],
)
def test_only_gradients_that_there_are_can_be_shared(shared, said):
    schema = "f_backward(Tensor grad_y) -> Tensor grad_x"
    details = Backward(schema, lambda grad_y: grad_y, shared=shared)
    forward = parse("f(Tensor x, Tensor b, float scale) -> Tensor y")
    with pytest.raises(RecordError) as raised:
        gradient.of_op(forward, parse(schema), None, details)
    assert said in str(raised.value)
