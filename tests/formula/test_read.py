# SPDX-License-Identifier: Apache-2.0
"""The graph of a function: symbols stay symbols, and what no kernel is written for is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opforge
from opforge.formula import example, read, save, source
from opforge.formula.graph import Graph, cone
from opforge.formula.write import folder
from opforge.new.folder import write_files


def graph_of(function: object, shapes: str | None = None) -> Graph:
    found = source.of_function(function)  # type: ignore[arg-type]
    return read.read(found, example.resolve(found, shapes))


def leaky(x: Tensor, slope: float) -> Tensor:
    return F.leaky_relu(x, slope)


def power(x: Tensor, n: float) -> Tensor:
    return torch.clamp(x, min=0.1) ** n


def spread(x: Tensor) -> Tensor:
    return x.var(-1)


def mean_all(x: Tensor) -> Tensor:
    return F.mse_loss(x, torch.zeros_like(x))


@pytest.mark.parametrize("function", [leaky, power, spread, mean_all])
def test_no_number_is_left_where_an_argument_or_a_size_was(function: object) -> None:
    graph = graph_of(function)
    assert graph.why_no_kernel is None
    values = cone([r.value for r in (*graph.outputs, *graph.gradients)])
    numbers = {abs(v.number) for v in values if v.op == "constant"}
    assert numbers <= {0.0, 0.1, 0.5, 1.0, 2.0}
    if graph.numbers:
        assert any(v.op == "number" for v in values)
    else:
        assert any(v.op == "size" for v in values)


def whole_part(x: Tensor) -> Tensor:
    return x * x.long().to(x.dtype)


def is_there(x: Tensor) -> Tensor:
    return x * x.bool()


def test_a_conversion_that_loses_something_is_an_operation() -> None:
    for function, op in ((whole_part, "trunc"), (is_there, "ne")):
        assert op in [v.op for v in cone([o.value for o in graph_of(function).outputs])]


def last_two(x: Tensor) -> Tensor:
    return x * x.mean(1, keepdim=True)


def any_leading(x: Tensor) -> Tensor:
    return x * x.mean(-1, keepdim=True)


def test_leading_dims_are_any_only_where_the_formula_is_the_same() -> None:
    assert graph_of(any_leading).any_rank
    assert not graph_of(last_two).any_rank  # dim 1 of three dims would be another


def running(x: Tensor) -> Tensor:
    h = x * 2
    return torch.cumsum(h, -1)


def product(x: Tensor, y: Tensor) -> Tensor:
    return x @ y.t()


def shifted(x: Tensor) -> Tensor:
    return x[:, 1:] - x[:, :-1]


@pytest.mark.parametrize(
    ("function", "words"),
    [(running, "running sums"), (product, "a matrix product"), (shifted, "a part of a tensor")],
)
def test_what_has_no_kernel_is_named_by_its_line(function: object, words: str) -> None:
    graph = graph_of(function)
    assert graph.why_no_kernel is not None
    assert words in graph.why_no_kernel.reason
    first = source.of_function(function).first  # type: ignore[arg-type]
    assert graph.why_no_kernel.line is not None
    assert graph.why_no_kernel.line > first


def test_the_reference_stays_where_there_is_no_kernel(tmp_path: Path) -> None:
    found = source.of_function(running)
    made = folder.write("running", found, example.resolve(found, None), into=tmp_path)
    assert [what for what, _ in made.unmapped] == ["the formula"]
    assert "host.h" not in made.files
    write_files(tmp_path / "running", made.files)
    op = opforge.load(tmp_path / "running")
    x = torch.randn(3, 5, requires_grad=True)
    torch.testing.assert_close(op(x), torch.cumsum(x * 2, -1))
    op(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad[0], torch.tensor([10.0, 8, 6, 4, 2]))


def silu_gate(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def normed_sum(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    h = x + residual
    return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1.0), h


def test_the_fewest_tensors_are_kept_for_the_backward() -> None:
    assert save.choices(graph_of(softmax))[0].kept == ("y",)
    assert save.choices(graph_of(silu_gate))[0].kept == ("gate", "up")
    assert save.choices(graph_of(normed_sum))[0].kept == ("h",)


def test_save_takes_another_way_or_says_which_there_are() -> None:
    graph = graph_of(softmax)
    assert save.choose(graph, "x").kept == ("x",)
    with pytest.raises(opforge.errors.NewError, match="it can from y or x"):
        save.choose(graph, "z")
