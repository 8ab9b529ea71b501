# SPDX-License-Identifier: Apache-2.0
"""`opforge check`: what it says, what it refuses, and that it goes on after a crash."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from check_command import command
from helpers import CPU_CPP, CUDA_CU, PATIENCE, write_op
from op_cases import each_op

from opforge import cli, discover, testing
from opforge.check import results, row, runner, worker
from opforge.check.options import Options
from opforge.check.place import Place
from opforge.errors import OpforgeError, RecordError

RECORD = """\
# SPDX-License-Identifier: Apache-2.0
import torch
from opforge import Op

def cases(make):
    for shape in [(7,), (5, 33)]:
        yield (make(*shape),)

op = Op(
    schema="{name}(Tensor x) -> Tensor y",
    reference={reference},
    dtypes=(torch.float32, torch.float64),
    {more}
)
"""


def write(
    folder: Path, name: str, reference: str = "lambda x: 2 * x", more: str = "cases=cases,", **files
) -> Path:
    record = RECORD.format(name=name, reference=reference, more=more)
    return write_op(folder / name, op_py=record, cpp=files.pop("cpp", None), **files)


# --- the rows -------------------------------------------------------------------------------------


def test_every_row_of_the_scoreboard_is_there():
    rows = row.all_rows()
    assert {r.number for r in rows} == {0, *range(1, 51), *range(73, 83)}
    assert len({r.name for r in rows}) == len(rows)
    stars = {1, 3, 4, 5, 8, 9, 11, 13, 15, 19, 21, 22, 23, 26, 31, 32, 34, 35, 37, 41, 42, 43, 45}
    assert {r.number for r in rows if r.star} == stars | {73, 74, 75, 78, 82}
    for r in rows:
        assert r.reason.endswith(".")
        assert set(r.letters) <= set("csg")


def test_rows_are_found_by_name_and_number():
    assert row.find(["8"]) == row.find(["narrow-gradient"])
    with pytest.raises(OpforgeError, match="unknown row 'nonsense'; the rows are: own-cases"):
        row.find(["nonsense"])


def test_the_command_lists_the_rows():
    said = command("--rows").stdout
    assert re.search(r"8★ +narrow-gradient +c s g +After torch\.cat, the gradient", said)


# --- right ops ------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_right_op_passes_and_what_was_not_run_is_counted(tmp_path):
    done = command(
        write(tmp_path, "twice"), "--json", tmp_path / "r.json", "--html", tmp_path / "r"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"twice: \d+ passed, 0 failed, 1 not run \(star rows.*: (\d+) of \1 passed\)",
                     done.stdout)  # fmt: skip
    assert "checked CPU: the reference: it has no CPU kernel" in done.stdout
    assert re.search(r"CPU forward: at most [\d.]+ ulp from the truth, rms [\d.]+ \(PyTorch: ",
                     done.stdout)  # fmt: skip
    assert re.search(r"45 +import +– +needs a process of its own; --full runs it", done.stdout)
    written = results.from_json(json.loads((tmp_path / "r.json").read_text()))
    assert written.exit_code == 0
    assert written.facts["torch"] == torch.__version__
    page = (tmp_path / "r").read_text()
    assert page.startswith("<!doctype html>")
    assert "http" not in page
    assert "narrow-gradient" in page


def test_without_a_gpu_its_rows_are_told_as_not_run():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = command("relu", "--only", "graph", "--only", "huge")
    assert re.search(r"11 +huge +– +no CUDA GPU here", done.stdout)
    assert "relu: 0 passed, 0 failed, 2 not run" in done.stdout
    assert done.returncode == 2


def test_the_simulator_stands_in_for_the_gpu():
    done = command("relu", "--only", "own-cases", "--only", "other-device", "--only", "22")
    assert done.returncode == 0, done.stdout + done.stderr
    if not torch.cuda.is_available():
        assert "simulator: CUDA kernels in the simulator" in done.stdout
        assert "relu: 3 passed, 0 failed, 1 not run" in done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("seeds", [2, 20])
@each_op
def test_right_ops_are_accepted_whatever_the_seed(name, seeds):
    for seed in range(1, 1 + seeds):  # test_rows.py has 0
        for place in ("cpu", "sim"):
            for one in row.find(["own-cases", "gradients", "random", "special-values"]):
                result = worker.run(one, row.Trial(discover.find(name), Place(place), seed))
                assert result.outcome == results.PASSED, f"seed {seed}: {result.text}"


UNUSUAL = {
    "a bool output": (
        "masked(Tensor x) -> (Tensor y, Tensor mask)",
        "lambda x: (x * (x > 0), x > 0)",
        "[(make(5, 7),), (make(33),)]",
    ),
    "an output that is not differentiated": (
        "half_kept(Tensor x) -> (Tensor y, Tensor mask)",
        "lambda x: (x * (x.detach() > 0), (x.detach() > 0).to(x.dtype))",
        "[(make(5, 7),), (make(33),)]",
    ),
    "an input without a gradient": (
        "centred(Tensor x, Tensor mean) -> Tensor y",
        "lambda x, mean: x - mean.detach()",
        "[(make(5, 7), make(5, 7)), (make(33), make(33))]",
    ),
    "labels": (
        "picked(Tensor x, Tensor label) -> Tensor y",
        "pick",
        "[(make(8, 33), make(8).abs().mul(5).long().clamp(max=32))]",
    ),
    "one element": ("one(Tensor x) -> Tensor y", "lambda x: x + 1", "[(make(),), (make(1),)]"),
    "rows": (
        "centre(Tensor x) -> Tensor y",
        "lambda x: x - x.mean(-1, keepdim=True)",
        "[(make(5, 33),), (make(4, 128),)]",
    ),
    "an argument named like a module": (
        "plus(Tensor inputs, float op) -> Tensor y",
        "lambda inputs, op: inputs + op",
        "[(make(5, 7), 1.0)]",
    ),
}

UNUSUAL_RECORD = """\
# SPDX-License-Identifier: Apache-2.0
import torch
from opforge import Op

def pick(x, label):
    if bool(((label < 0) | (label >= x.shape[1])).any()):
        raise ValueError(f"label has a value out of range for {{x.shape[1]}} classes")
    return x.gather(1, label[:, None])[:, 0]

def validate(x, label):
    if x.dim() != 2 or label.shape != x.shape[:1]:
        raise ValueError(f"x is {{tuple(x.shape)}}, label {{tuple(label.shape)}}: one per row")

def same_shapes(x, mean):
    if x.shape != mean.shape or x.dtype != mean.dtype:
        raise ValueError(
            f"x is {{x.dtype}} {{tuple(x.shape)}}, mean {{mean.dtype}} {{tuple(mean.shape)}}"
        )

op = Op(
    schema="{schema}",
    reference={reference},
    dtypes=(torch.float32, torch.float64, torch.bool, torch.int64),
    cases=lambda make: {cases},
    {more}
)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("name", UNUSUAL)
def test_right_ops_of_unusual_kinds_are_accepted(tmp_path, name):
    schema, reference, cases = UNUSUAL[name]
    more = "validate=validate," if name == "labels" else ""
    if name == "an input without a gradient":
        more = "validate=same_shapes,"
    if name == "rows":
        more = "rowwise=True,"
    text = UNUSUAL_RECORD.format(schema=schema, reference=reference, cases=cases, more=more)
    left_out = {"opcheck", "compile", "export", "vmap"} if name == "labels" else set()  # a branch
    rows = [r.name for r in row.all_rows() if "c" in r.letters and r.name not in left_out]
    testing.check(write_op(tmp_path / "op", op_py=text, cpp=None), on=["cpu"], only=rows)


def test_a_row_that_tried_nothing_has_not_passed(tmp_path):
    folder = write(tmp_path, "scalar_only", more="cases=lambda make: [(make(),)],")
    (one,) = testing.check(folder, on=["cpu"], only=["odd-sizes", "many-rows", "own-cases"]).ops
    found = {r.row: r for r in one.results}
    assert found["own-cases"].outcome == results.PASSED
    for name in ("odd-sizes", "many-rows"):
        assert found[name].outcome == results.NOT_APPLICABLE
        assert found[name].text == "no situation of this row fits the op's cases"


@pytest.mark.nightly
def test_opcheck_is_run_though_it_goes_past_the_ops_own_call():
    report = runner.check([discover.find("relu")], Options(("cpu",), only=("opcheck",)))
    (found,) = report.ops[0].results
    assert (found.outcome, "calls of opcheck" in found.text) == (results.PASSED, True)


def test_a_check_that_could_run_nothing_is_no_success():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(testing.CheckFailed, match="no row was run: no CUDA GPU here"):
        testing.check("relu", on=["cuda"], only=["graph"])


# --- wrong ops ------------------------------------------------------------------------------------


WRONG_GRADIENT = "cases=cases, backward=lambda grad_y, x: 3 * grad_y,"


def test_a_failure_is_explained_and_can_be_seen_again(tmp_path):
    folder = write(tmp_path, "thrice", more=WRONG_GRADIENT)
    file = tmp_path / "report.json"
    only = ("--only", "gradients", "--only", "offset")
    done = command(folder, "--on", "cpu", *only, "--json", file)
    assert done.returncode == 1
    assert "✗ thrice, 35★ gradients, CPU" in done.stdout
    why = "gradcheck must pass in float64, and the kernel's gradients must be near the truth"
    assert why in done.stdout
    assert re.search(r"grad_x of thrice: error .* is allowed, at .*7 of 7 elements are wrong",
                     done.stdout)  # fmt: skip
    assert "because of the same fault as gradients: offset (CPU)" in done.stdout
    report = results.from_json(json.loads(file.read_text()))
    for _, result in report.failed:
        assert textwrap.indent(result.script, "    ") in done.stdout or result.cause
        again = subprocess.run(
            [sys.executable, "-c", result.script], capture_output=True, text=True, timeout=PATIENCE
        )
        assert "Mismatch: grad_x of thrice: error " in again.stderr


def test_check_raises_with_the_script_and_the_report(tmp_path):
    with pytest.raises(testing.CheckFailed, match=r"offset on cpu: grad_x of") as failure:
        testing.check(write(tmp_path, "triple", more=WRONG_GRADIENT), on=["cpu"], only=["offset"])
    assert "x = change.offset(x)" in str(failure.value)
    assert len(failure.value.report.failed) == 1


CRASH = """
#include <opforge/host.h>
using opforge::Tensor;
static Tensor crash(const Tensor& x) {
  Tensor y = opforge::empty(opforge::sizes(x), x);
  if (x.numel() == 0) *reinterpret_cast<volatile int*>(8) = 1;
  if (x.numel() == 33) for (volatile int i = 0; i >= 0;) {}
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (opforge::dtype_of(x) == opforge::DType::f32)
      opforge::mutable_data<float>(y)[i] = 2 * opforge::data<float>(x)[i];
    else
      opforge::mutable_data<double>(y)[i] = 2 * opforge::data<double>(x)[i];
  }
  return y;
}
OPFORGE_IMPL(crashes, crash)
"""


@pytest.mark.nightly
def test_a_crash_and_a_hang_are_their_rows_failures_and_the_rest_goes_on(tmp_path):
    op = discover.load_folder(write(tmp_path, "crashes", cpp=CRASH)).op
    options = Options(("cpu",), only=("empty", "odd-sizes", "aliasing"), seconds=8)
    (report,) = runner.check([op], options, quiet=True).ops
    found = {r.row: r for r in report.results}
    assert found["empty"].outcome == results.FAILED
    assert "process that ran the kernel is gone: ended by SIGSEGV" in found["empty"].text
    assert re.search(r"\nwith x float32 \(0,?.*\)", found["empty"].text)
    assert "checks.check_forward(op, case, place)\n" in found["empty"].script
    assert "on=['cpu'], only=['empty'], seed=0)" in found["empty"].script
    assert found["odd-sizes"].outcome == results.FAILED
    assert "it did not answer for 8 s" in found["odd-sizes"].text
    assert found["aliasing"].outcome == results.PASSED


IMPOSSIBLE = [
    (
        "without_cases",
        {"more": "", "reference": "lambda x: x.view(7, 7, 7, 7)"},
        r"the record of without_cases has no cases, and its reference accepts none of those "
        r"derived from the schema \(the last: RuntimeError: shape .*give the record cases=<a",
    ),
    (
        "no_cases",
        {"more": "cases=lambda make: [],"},
        "the record of no_cases yields no cases; there is nothing to check",
    ),
    (
        "too_many",
        {"more": "cases=lambda make: [(make(3), 1)],"},
        "a case of too_many has 2 values, its schema",
    ),
    (
        "wrong_kind",
        {"more": "cases=lambda make: [(1.0,)],"},
        r"case 0 of wrong_kind does not match its schema .* x must be a torch.Tensor, got f",
    ),
    (
        "raises",
        {"reference": "lambda x: x @ torch.ones(2, 3, 4, 5)"},
        r"the reference of raises raises on case 0 of raises \(x float32 \(7,\)\): RuntimeErr",
    ),
    (
        "rolls_dice",
        {"reference": "lambda x: x + torch.rand(())"},
        "reference of rolls_dice is not deterministic: called twice on case 0 of rolls_dice",
    ),
    (
        "two_values",
        {"reference": "lambda x: (x, x)"},
        "the reference of two_values returns 2 values, its schema .* has 1",
    ),
]


@pytest.mark.parametrize(("name", "changes", "said"), IMPOSSIBLE)
def test_what_cannot_be_checked_is_refused_before_any_row(tmp_path, name, changes, said):
    op = discover.find(str(write(tmp_path, name, **changes)))
    with pytest.raises(RecordError) as refused:
        worker.examine(op, 0)
    assert re.search(said, str(refused.value).replace("\n", " "))


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        *(pytest.param(*one, marks=pytest.mark.nightly) for one in IMPOSSIBLE),
        ("broken", {"cpp": "int broken("}, r"broken.*cpu\.cpp:1"),
    ],
)
def test_what_cannot_be_checked_says_why(tmp_path, name, changes, said):
    done = command(write(tmp_path, name, **changes), "--on", "cpu")
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.search(f"{name} could not be checked: .*{said}", done.stdout.replace("\n", " "))


@pytest.mark.nightly
def test_cpu_rows_are_run_though_the_cuda_source_does_not_compile(tmp_path):
    cpp = CPU_CPP.format(name="half_broken", factor=2)
    folder = write(tmp_path, "half_broken", cpp=cpp, cu="int broken(")
    file = tmp_path / "report.json"
    rows = ("--only", "own-cases", "--only", "aliasing", "--only", "offset")
    done = command(folder, "--on", "cpu,sim", *rows, "--json", file)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("building half_broken (sim) failed: ") == 1
    assert re.search(r"cuda\.cu:1.*error", done.stdout)
    assert "the same fault as own-cases: aliasing (simulator), offset (simulator)" in done.stdout
    report = results.from_json(json.loads(file.read_text()))
    found = {(r.place, r.row): r.outcome for r in report.ops[0].results}
    outcomes = {"cpu": results.PASSED, "sim": results.FAILED}
    names = ("own-cases", "offset", "aliasing")
    assert found == {(p, row): outcome for p, outcome in outcomes.items() for row in names}


def test_what_cannot_be_simulated_is_not_run_there(tmp_path):
    cu = CUDA_CU.format(name="in_assembly", factor=2) + '\n__device__ void f() { asm("exit;"); }\n'
    folder = write(tmp_path, "in_assembly", cu=cu)
    done = command(folder, "--on", "cpu,sim", "--only", "own-cases")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"own-cases +✓ +– +not simulated: uses .*cuda\.cu:\d+", done.stdout)


@pytest.mark.nightly
def test_an_interrupted_check_leaves_no_process_behind(tmp_path):
    folder = write(tmp_path, "crashes", cpp=CRASH)
    check = subprocess.Popen(
        [sys.executable, "-m", "opforge", "check", folder, "--on", "cpu", "--only", "odd-sizes"],
        stderr=subprocess.DEVNULL,
        # What is started in the background ignores the signal, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    # until the kernel is in its endless loop
    while not any(cpu_seconds(p) > 6 for p in children(check.pid)):
        assert check.poll() is None
        time.sleep(0.1)
    workers = children(check.pid)
    assert workers
    check.send_signal(signal.SIGINT)
    assert check.wait() != 0
    assert not any(Path(f"/proc/{p}").exists() for p in workers)


def children(pid: int) -> list[int]:
    said = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout
    return [int(p) for p in said.split()]


def cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--on", "gpu"], "unknown place 'gpu'; use some of cpu,sim,cuda"),
        (["--only", "x"], "unknown row 'x'"),
        (["--on", "cpu", "--only", "graph"], "row graph does not run on cpu"),
        (["no/such/op"], ""),
    ],
)
def test_options_that_make_no_sense(monkeypatch, capsys, arguments, said):
    monkeypatch.setattr(sys, "argv", ["opforge", "check", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


# --- pytest ---------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_one_line_makes_a_test_of_every_row(tmp_path):
    write(tmp_path, "good")
    write(tmp_path, "bad", more=WRONG_GRADIENT)
    lines = "import opforge.testing\n"
    lines += 'test_good = opforge.testing.matrix("good", on=["cpu"])\n'
    lines += 'test_bad = opforge.testing.matrix("bad", on=["cpu"])\n'
    (tmp_path / "test_ops.py").write_text(lines)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rfs", "-p", "no:cacheprovider", "test_ops.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=PATIENCE,
    )
    assert done.returncode == 1
    assert "FAILED test_ops.py::test_bad[gradients-cpu]" in done.stdout
    assert "FAILED test_ops.py::test_good" not in done.stdout
    assert "n/a: it has one tensor" in done.stdout
    assert "to reproduce it:" in done.stdout


def test_a_matrix_of_some_rows_builds_for_those_alone():
    seen = []
    some = testing.matrix("relu", on=["cpu"], only=["own-cases"])
    some("own-cases", "cpu", lambda op, options, row, place: seen.append(options))
    assert seen[0].todo(discover.find("relu")) == [("own-cases", "cpu")]
