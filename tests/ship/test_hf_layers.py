# SPDX-License-Identifier: Apache-2.0
"""The layers of the built-in ops give what the layers of torch that they replace give."""

from __future__ import annotations

import importlib
from types import MethodType

import pytest
import torch
from kernels.layer.layer import _validate_layer
from torch import Tensor, nn

from opforge import discover
from opforge.ship.hf_sources import layer_names

NAMES = [n for n in discover.builtin_names() if layer_names(discover.find(n))]


def layers(op: str) -> dict[str, type[nn.Module]]:
    folder = discover.find(op)
    module = importlib.import_module(f"opforge.ops.{op}.layers")
    return {name: getattr(module, name) for name in layer_names(folder)}


class Halves(nn.Module):
    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return self.act(gate) * up


class Llama(nn.Module):
    def __init__(self, offset: float = 0.0) -> None:
        super().__init__()
        self.offset, self.weight = offset, nn.Parameter(torch.randn(8))
        self.eps = self.variance_epsilon = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, (8,), self.weight + self.offset, self.eps)


def labels() -> tuple[Tensor, Tensor]:
    return torch.randn(3, 8, 2, requires_grad=True), torch.tensor([[1, 7], [-100, 0], [2, 2]])


@pytest.mark.parametrize(
    ("op", "layer", "module"),
    [
        ("relu", "ReLU", nn.ReLU()),
        ("rms_norm", "RMSNorm", nn.RMSNorm(8)),
        ("rms_norm", "RMSNorm", nn.RMSNorm((6, 8), eps=1e-3)),
        ("rms_norm", "RMSNorm", nn.RMSNorm((6, 8), elementwise_affine=False)),
        ("rms_norm", "LlamaRMSNorm", Llama()),
        ("rms_norm", "GemmaRMSNorm", Llama(1.0)),
        ("layer_norm", "LayerNorm", nn.LayerNorm(8)),
        ("layer_norm", "LayerNorm", nn.LayerNorm((6, 8), bias=False)),
        ("group_norm", "GroupNorm", nn.GroupNorm(3, 6)),
        ("swiglu", "SiluAndMul", Halves(nn.SiLU())),
        ("reglu", "ReluAndMul", Halves(nn.ReLU())),
        ("geglu", "GeluAndMul", Halves(nn.GELU())),
        ("geglu", "GeluTanhAndMul", Halves(nn.GELU("tanh"))),
        ("softmax", "Softmax", nn.Softmax(-1)),
        ("softmax", "Softmax", nn.Softmax(1)),
        ("log_softmax", "LogSoftmax", nn.LogSoftmax(0)),
        ("dropout", "Dropout", nn.Dropout(0.5).eval()),
        ("cross_entropy", "CrossEntropyLoss", nn.CrossEntropyLoss(label_smoothing=0.1)),
        ("cross_entropy", "CrossEntropyLoss", nn.CrossEntropyLoss(reduction="none")),
    ],
)
def test_a_layer_equals_what_it_replaces(op: str, layer: str, module: nn.Module) -> None:
    made = layers(op)[layer]
    _validate_layer(check_cls=type(module), cls=made, repo=op)  # type: ignore[arg-type]
    inputs = labels() if op == "cross_entropy" else (torch.randn(5, 6, 8, requires_grad=True),)
    replaced = MethodType(made.forward, module)  # as kernelize does it
    wanted = [inputs[0], *module.parameters()]
    both = []
    for run in (module.forward, replaced):
        y = run(*inputs)
        weights = torch.linspace(0, 1, y.numel()).reshape(y.shape)
        both.append((y, *torch.autograd.grad((y * weights).sum(), wanted)))
    torch.testing.assert_close(both[1], both[0])


def test_a_dropout_layer_drops_while_training() -> None:
    module = nn.Dropout(0.5)
    y = MethodType(layers("dropout")["Dropout"].forward, module)(torch.ones(1000))
    assert 300 < (y == 0).sum() < 700


def test_class_weights_are_refused() -> None:
    module = nn.CrossEntropyLoss(weight=torch.ones(8))
    with pytest.raises(ValueError, match="class weights are not supported"):
        MethodType(layers("cross_entropy")["CrossEntropyLoss"].forward, module)(*labels())


@pytest.mark.parametrize("op", NAMES)
def test_every_layer_can_be_trained_and_compiled(op: str) -> None:
    for layer in layers(op).values():
        assert layer.has_backward is True
        assert layer.can_torch_compile is True
