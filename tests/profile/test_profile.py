# SPDX-License-Identifier: Apache-2.0
"""opforge profile: the command, what it refuses, what it tells without a GPU, timelines."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
import typer
from helpers import write_op
from typer.testing import CliRunner

from opforge import discover
from opforge.build import tools
from opforge.errors import OpforgeError, ProfileError, RecordError
from opforge.profile import report, request, timeline, unmeasured
from opforge.profile.cli import profile
from opforge.profile.facts import Access, Call, Kernel

app = typer.Typer()
app.command()(profile)


def run(*arguments: object) -> str:
    """What the command prints; it must succeed."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.output


# --- the request ---


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "message"),
    [
        ("nothing", "8x8", None, "neither a built-in op .* nor an op folder"),
        ("relu", "8x8", "bfloat15", "relu does not take dtype 'bfloat15'; it takes float32"),
        ("relu", "8x8", "relu", "does not take dtype 'relu'"),
        ("relu", "8x8", "int32", "relu does not take dtype 'int32'; it takes float32"),
        ("relu", "8by8", None, "is not a shape"),
        ("relu", "8x8,9x9", None, "2 shapes; profile one at a time"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    name: str, shape: str, dtype: str | None, message: str
) -> None:
    with pytest.raises(OpforgeError, match=message):
        request.resolve(name, shape, dtype, backward=False)


def test_a_shape_that_the_op_does_not_take_is_refused(tmp_path: Path) -> None:
    text = """
        import torch
        from opforge import Op
        def validate(x):
            if x.shape[-1] % 2:
                raise ValueError("x must have an even last dim")
        op = Op(schema="evens(Tensor x) -> Tensor y", reference=torch.neg, validate=validate,
                sized=lambda make, *shape: (make(*shape),))
    """
    folder = str(write_op(tmp_path / "evens", op_py=text, cpp=None))
    with pytest.raises(OpforgeError, match=r"evens .* 8x7.*even last dim"):
        request.resolve(folder, "8x7", None, backward=False)
    assert request.resolve(folder, "8x8", None, backward=False).title == "evens 8x8 bfloat16"


def test_the_dtype_is_bfloat16_where_the_op_takes_it(tmp_path: Path) -> None:
    assert request.resolve("relu", "8x8", None, False).dtype == torch.bfloat16
    folder = write_op(tmp_path / "op", name="no_bfloat16", cpp=None)
    record = discover.find(str(folder))
    record.sized = lambda make, *shape: (make(*shape),)
    assert request.resolve(str(folder), "8x8", None, False).dtype == torch.float32


def test_an_op_without_cuda_code_is_refused(tmp_path: Path) -> None:
    op = discover.find(str(write_op(tmp_path / "op", name="without_cuda", cpp=None)))
    with pytest.raises(ProfileError, match="no CUDA code"):
        report.make(request.Request(op, (8, 8), torch.float32))


def test_every_variant_runs_forward_and_backward() -> None:
    wanted = request.resolve("reduce_sum", "4x8", "float32", backward=True)
    made = request.runs(wanted, "cpu")
    assert [r.what for r in made][:2] == ["forward (last dim)", "backward (last dim)"]
    assert len(made) == 6
    assert made[0].model_bytes == 4 * 8 * 4 + 4 * 4
    assert made[1].model_bytes == 0  # a view
    assert made[0].call().shape == (4,)
    assert made[1].call()[0].shape == (4, 8)


# --- without a GPU ---


def test_shapes_are_cut_from_the_front() -> None:
    assert unmeasured.cut((8192, 8192)) == (128, 8192)
    assert unmeasured.cut((1, 131072)) == (1, 131072)
    assert unmeasured.cut((1 << 27,)) == (1 << 20,)
    assert unmeasured.cut((4, 4096, 50257)) == (1, 16, 50257)


@pytest.mark.sim
@pytest.mark.nightly
def test_the_simulator_tells_the_traffic_and_the_code_is_joined_by_name() -> None:
    code = Kernel("elementwise_vectors", registers=24)
    wanted = request.resolve("relu", "64x256", "bf16", backward=False)
    assert [c.what for c in unmeasured.simulate(wanted, [code])] == ["relu(64x256)"]
    wanted = request.resolve("relu", "64x256", "bf16", backward=True)
    forward, backward = unmeasured.simulate(wanted, [code])
    assert forward.what == "relu(64x256)"
    assert forward.verdict == "moves 65.5 KB; it must move 65.5 KB"
    assert forward.moved == forward.model_bytes == 2 * 64 * 256 * 2
    assert backward.model_bytes == 3 * 64 * 256 * 2
    assert forward.kernels[0].registers == 24
    assert forward.kernels[0].loads == Access(16.0, 16.0)
    assert not forward.measured


@pytest.mark.sim
@pytest.mark.nightly
def test_the_command_tells_what_is_known_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "why_no_gpu", lambda: "the GPU is on holiday")
    code = unmeasured.compiled.Compiled("9.0", "a test", [], "no counts: buy some")
    monkeypatch.setattr(unmeasured.compiled, "inspect", lambda op: code)
    file = tmp_path / "found.json"
    text = run("relu", "--shape", "64x256", "--json", file)
    assert "relu 64x256 bfloat16: not measured: the GPU is on holiday. Facts from the" in text
    assert "relu(64x256), simulated: moves 65.5 KB; it must move 65.5 KB" in text
    assert "what to try next" in text
    assert "no counts: buy some" in text
    saved = json.loads(file.read_text())
    assert saved["calls"][0]["kernels"][0]["name"] == "elementwise_vectors"
    assert saved["calls"][0]["advice"]


def test_what_cannot_be_known_is_a_note_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise RecordError("for a reason")

    monkeypatch.setattr(unmeasured, "simulate", fails)
    code = unmeasured.compiled.Compiled("9.0", "a test", [])
    monkeypatch.setattr(unmeasured.compiled, "inspect", lambda op: code)
    known = unmeasured.look(request.resolve("relu", "64x256", "bfloat16", False))
    assert known.notes == ["the memory traffic could not be simulated: for a reason"]
    assert known.calls == [Call("as compiled", None, [])]


# --- the command and the timeline ---


def test_the_command_refuses_two_kinds_of_file(tmp_path: Path) -> None:
    arguments = ["relu", "--timeline", str(tmp_path / "t"), "--json", str(tmp_path / "j")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "choose one of --timeline and --json" in re.sub(r"\s+", " ", result.output)


def test_a_timeline_shows_forward_and_backward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "why_no_gpu", lambda: "a test")
    file = tmp_path / "trace.json"
    text = run("relu", "--shape", "8x8", "--backward", "--timeline", file)
    assert "ui.perfetto.dev" in text
    names = [e.get("name") for e in json.loads(file.read_text())["traceEvents"]]
    assert names.count("opforge.relu") == 5
    assert names.count("opforge.relu_backward") == 5


def test_nsight_systems_is_not_run_but_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "why_no_gpu", lambda: "")
    monkeypatch.setattr(tools, "find", lambda name: f"/opt/{name}")
    text = run("relu", "--shape", "8x8", "--timeline", tmp_path / "out file")
    assert "/opt/nsys profile --trace cuda,nvtx" in text
    assert f"-o '{tmp_path / 'out file'}'" in text
    assert "-m opforge.profile.child relu 8x8 bfloat16" in text
    assert not list(tmp_path.iterdir())


def test_a_timeline_into_nowhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "why_no_gpu", lambda: "a test")
    wanted = request.resolve("relu", "8x8", None, False)
    with pytest.raises(ProfileError, match="is not a folder"):
        timeline.timeline(wanted, tmp_path / "missing" / "trace.json")
