# SPDX-License-Identifier: Apache-2.0
"""Targets say what follows from them, so that nothing else decides by their names."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import pytest
import torch

import opforge
from opforge import discover
from opforge.build import load, targets
from opforge.check.place import PLACES, Place
from opforge.check.row import all_rows
from opforge.errors import KernelUnavailable, RecordError
from opforge.sim import simulation

# What a name may be compared with: the devices of torch, and the wish of a user for one.
DEVICES = {"device", "device_type", "type", "wish"}


def test_only_torch_devices_are_compared_with_the_names_of_targets() -> None:
    """A decision about a target or a place of the check is a field of it."""
    names = {*targets.ALL, *PLACES}
    found = []
    for file in Path(opforge.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Compare):
                continue
            sides = [node.left, *node.comparators]
            words = {x.value for s in sides for x in ast.walk(s) if isinstance(x, ast.Constant)}
            if names & words and not DEVICES & {_last_name(s) for s in sides}:
                found.append(f"{file}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def _last_name(node: ast.expr) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def test_a_device_has_the_target_that_users_run_on_it() -> None:
    assert targets.for_device("cpu") is targets.CPU
    assert targets.for_device("cuda") is targets.CUDA
    assert targets.for_device("meta") is None
    assert targets.FOR_USERS == ("cpu", "cuda")


def test_a_target_is_found_by_its_name() -> None:
    assert [targets.find(name).name for name in targets.ALL] == list(targets.ALL)
    with pytest.raises(RecordError, match="unknown target 'tpu'; targets are cpu, cuda, sim, "):
        targets.find("tpu")


def test_the_simulator_has_a_target_for_every_mode() -> None:
    assert set(targets.modes("sim")) == set(get_args(simulation.Mode))


def test_a_place_runs_the_build_of_its_mode() -> None:
    assert Place("cpu").target is targets.CPU
    assert Place("cpu", mode="cover").target is targets.CPU_COVER
    assert Place("sim", mode="race").target is targets.SIM_RACE
    assert Place("cuda").target is targets.CUDA
    assert [Place(name).device for name in PLACES] == ["cpu", "cpu", "cuda"]


def test_the_letters_of_rows_are_those_of_places() -> None:
    assert {x for row in all_rows() for x in row.letters} == {k.letter for k in PLACES.values()}


def test_a_library_for_another_gpu_is_refused(monkeypatch) -> None:
    facts = {"op": "relu", "archs": ["8.0", "8.6"]}
    assert targets.CUDA.misfit(facts) == ""  # without a GPU nobody can tell
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert targets.CUDA.misfit(facts) == (
        "is built for 8.0, 8.6, but the GPU is 9.0; rebuild it with "
        "`opforge build relu --cuda --arch 9.0`"
    )
    assert targets.CUDA.misfit({**facts, "archs": ["9.0"]}) == targets.CPU.misfit(facts) == ""


def test_nothing_is_loaded_for_cuda_while_a_graph_is_captured(monkeypatch) -> None:
    monkeypatch.setattr(load, "_loaded", {})
    monkeypatch.setattr(load, "_failed", {})
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    op = discover.find("relu")
    with pytest.raises(KernelUnavailable, match=r"relu is not loaded yet, .* run it once"):
        load.ensure(op, "relu", "cuda")
    assert not load._failed  # the next call tries again
    assert load.ensure(op, "relu", "cpu")


def test_cuda_does_not_fall_back_to_the_reference(monkeypatch) -> None:
    monkeypatch.setattr(load, "_loaded", {})
    monkeypatch.setattr(load, "_failed", {})
    monkeypatch.setenv("USE_CUDA", "0")
    wanted = "opforge.relu has no CUDA kernel for this tensor: CUDA is turned off by USE_CUDA=0"
    with pytest.raises(KernelUnavailable, match=wanted):
        load.ensure(discover.find("relu"), "relu", "cuda")
    assert load.ensure(discover.find("relu"), "relu", "meta") is False
