# SPDX-License-Identifier: Apache-2.0
"""opforge.nvtx(): ranges around the calls of ops, seen through the PyTorch profiler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers import write_op
from torch.profiler import ProfilerActivity

import opforge
from opforge import discover
from opforge.op import Op
from opforge.profile.nvtx import nvtx
from opforge.registration.gradient import Gradient

CALL, BACKWARD = Op.__call__, Gradient.backward


def ranges(work: Callable[[], object]) -> list[str]:
    """The ranges of ops that ``work`` shows in a profile."""
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiler:
        work()
    return [e.name for e in profiler.events() if e.name.startswith("opforge.")]


def step() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    opforge.scale_bias_relu(opforge.relu(x), torch.ones(8), 0.5).sum().backward()


@pytest.fixture(autouse=True)
def loaded() -> None:
    step()  # so that no build is in the profile


def test_calls_and_their_backward_are_ranges() -> None:
    def inside() -> None:
        with nvtx():
            step()

    assert sorted(ranges(inside)) == [
        "opforge.relu",
        "opforge.relu_backward",
        "opforge.scale_bias_relu",
        "opforge.scale_bias_relu_backward",
    ]


def test_a_range_holds_what_the_op_does() -> None:
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiler, nvtx():
        opforge.relu(torch.randn(4))
    (event,) = [e for e in profiler.events() if e.name == "opforge.relu"]
    assert any(child.name.startswith("opforge::relu") for child in event.cpu_children)


def test_it_costs_nothing_when_not_active() -> None:
    assert ranges(step) == []
    with nvtx():
        assert Op.__call__ is not CALL
    assert Op.__call__ is CALL
    assert Gradient.backward is BACKWARD
    assert ranges(step) == []


def test_nested_contexts_name_a_call_once() -> None:
    def inside() -> None:
        with nvtx():
            with nvtx():
                opforge.relu(torch.randn(4))
            opforge.relu(torch.randn(4))

    assert ranges(inside) == ["opforge.relu"] * 2
    assert Op.__call__ is CALL


def test_it_is_undone_after_an_exception() -> None:
    def fails() -> None:
        with nvtx():
            opforge.relu(torch.ones(3, dtype=torch.int32))

    def both() -> None:
        with pytest.raises(TypeError, match="int32"):
            fails()
        opforge.relu(torch.randn(4))

    assert ranges(both) == ["opforge.relu"]  # the call that failed, ended
    assert Op.__call__ is CALL
    assert Gradient.backward is BACKWARD


def test_ops_loaded_meanwhile_and_graphs_made_before_are_seen(tmp_path: Path) -> None:
    folder = write_op(tmp_path / "op", name="loaded_later", cpp=None)
    x = torch.randn(4, requires_grad=True)
    y = opforge.relu(x)

    def inside() -> None:
        with nvtx():
            opforge.load(folder)(torch.randn(4))
            y.sum().backward()

    assert ranges(inside) == ["opforge.loaded_later", "opforge.relu_backward"]


def test_a_derived_backward_has_its_name(tmp_path: Path) -> None:
    op = discover.find(str(write_op(tmp_path / "op", name="derived_range", cpp=None)))
    x = torch.randn(4, requires_grad=True)

    def inside() -> None:
        with nvtx():
            op(x).sum().backward()

    assert ranges(inside) == ["opforge.derived_range", "opforge.derived_range_backward"]


def test_results_are_the_same_inside() -> None:
    x = torch.randn(4, 8)
    with nvtx():
        inside = opforge.relu(x)
    assert torch.equal(inside, opforge.relu(x))


def test_graphs_traced_inside_have_no_trace_of_it() -> None:
    with nvtx():
        graph = torch.fx.experimental.proxy_tensor.make_fx(opforge.relu)(torch.randn(4))
        compiled = torch.compile(opforge.relu, backend="eager", fullgraph=True)
        assert compiled(torch.ones(4)).tolist() == [1.0] * 4
    targets = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
    assert targets == ["opforge.relu.default"]
