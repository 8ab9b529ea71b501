# SPDX-License-Identifier: Apache-2.0
"""What `opforge new` writes is a real op: it passes the check unedited, and fails when it is wrong.

Compiling takes most of the time. By day, these are the kinds that compile fast.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from new_folders import KINDS, write

from opforge import discover, testing
from opforge.bench import runner
from opforge.build import compile
from opforge.build.plan import plan
from opforge.build.targets import has_sources
from opforge.check import results, worker
from opforge.check import row as rows
from opforge.check.place import Place
from opforge.new import folder, request
from opforge.op import Make

BY_DAY = {
    ("elementwise", "cpu", False),
    ("matmul", "cpu", False),
    ("matmul", "sim", False),
    ("composed", "cpu", True),
    ("composed", "sim", False),
    ("blank", "cpu", False),
    ("blank", "cpu", True),
}


def by_day(kind: str, place: str, wide: bool) -> object:
    mark = () if (kind, place, wide) in BY_DAY else pytest.mark.nightly
    return pytest.param(kind, place, wide, marks=mark, id=f"{kind}-{place}-{'wide' * wide}")


def result(new: Path, row: str, place: str) -> results.Result:
    """The result of a row in this process."""
    op = discover.load_folder(new).op
    (found,) = rows.find([row])
    return worker.run(found, rows.Trial(op, Place(place)))


@pytest.mark.parametrize(
    ("kind", "place", "wide"),
    [
        by_day(k, p, w)
        for k in KINDS
        for p in ("cpu", "sim")
        for w in (False, True)
        if (k, p) != ("blank", "sim")
    ],
)
def test_a_new_op_passes_its_cases_and_gradients(
    kind: str, place: str, wide: bool, tmp_path: Path
) -> None:
    new = write(kind, tmp_path, wide)
    for row in ("own-cases", "gradients"):
        found = result(new, row, place)
        assert found.outcome == results.PASSED, f"{found.text}\n\n{found.script}"


@pytest.mark.parametrize("wide", [False, True], ids=["default", "wide"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.nightly
def test_a_new_op_passes_the_quick_check(kind: str, wide: bool, tmp_path: Path) -> None:
    report = testing.check(write(kind, tmp_path, wide))
    assert not report.failed
    places = {r.place for one in report.ops for r in one.of(results.PASSED)}
    assert places >= ({"cpu"} if kind == "blank" else {"cpu", "sim"})


# A formula that one place alone has. Compiling a wrong one takes a while.
WRONG = [
    ("composed", "op.py", "scale=scale", "scale=2 * scale", "own-cases"),
    ("composed", "op.py", "passed.sum(-1, keepdim=True)", "passed.sum()", "gradients"),
    ("elementwise", "op.py", "x * x * scale", "x * x * x * scale", "own-cases"),
    ("elementwise", "op.py", "* scale * x * 2", "* scale * x * 3", "backward-reference"),
    ("elementwise", "cpu.cpp", "x * x * A<V>(scale)", "x * A<V>(scale)", "own-cases"),
    ("elementwise", "cpu.cpp", "x * A<V>(2)", "x * A<V>(3)", "gradients"),
    ("row", "cpu.cpp", "- dot * x", "+ dot * x", "gradients"),
    ("reduction", "cpu.cpp", "x * A<V>(2)", "x * A<V>(3)", "gradients"),
    ("stencil", "cpu.cpp", "up + down", "up + up", "own-cases"),
]


@pytest.mark.parametrize(
    ("kind", "file", "right", "wrong", "row"),
    [w if w[0] == "composed" else pytest.param(*w, marks=pytest.mark.nightly) for w in WRONG],
)
def test_a_wrong_formula_fails(
    kind: str, file: str, right: str, wrong: str, row: str, tmp_path: Path
) -> None:
    new = write(kind, tmp_path)
    text = (new / file).read_text()
    assert right in text
    (new / file).write_text(text.replace(right, wrong))
    assert result(new, row, "cpu").outcome == results.FAILED


@pytest.mark.filterwarnings("ignore:opforge.epsilon_.* runs through its PyTorch reference")
@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_epsilon_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPFORGE_JIT", "0")
    both = ", Tensor b" if kind == "matmul" else ""
    schema = f"epsilon_{kind}(Tensor x{both}, float eps) -> Tensor y"
    folder.write(request.resolve(f"epsilon_{kind}", kind, schema), tmp_path)
    op = discover.load_folder(tmp_path / f"epsilon_{kind}").op
    for case in op.iter_cases(Make()):
        op.validate(*case)
    with pytest.raises(ValueError, match=r"eps must be positive, got -1\.0"):
        op(*case[:-1], -1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_op_can_be_timed(kind: str, tmp_path: Path) -> None:
    op = discover.load_folder(write(kind, tmp_path, wide=True)).op
    works = list(runner.Options("cuda", backward=True).workloads(op))
    assert {w.direction for w in works} == {"forward", "backward"}
    if kind == "matmul":
        assert all(len(w.shape) == 3 for w in works)


@pytest.mark.filterwarnings("ignore:opforge.wide_elementwise runs through its PyTorch reference")
def test_tensors_of_other_shapes_are_broadcast_by_the_public_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPFORGE_JIT", "0")  # the reference runs
    function = discover.load(write("elementwise", tmp_path, wide=True))
    x, weight = torch.ones(3, 4), torch.full((4,), 2.0, requires_grad=True)
    y = function(x, weight, torch.ones(3, 1), 1.0, 3, False)
    assert y.tolist() == [[6.0] * 4] * 3
    y.sum().backward()
    assert weight.grad.tolist() == [9.0] * 4


# nvcc takes a minute for some. By day it compiles the one with the fewest kernels.
@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc")
@pytest.mark.parametrize(
    "kind",
    [
        k if k == "matmul" else pytest.param(k, marks=pytest.mark.nightly)
        for k in KINDS
        if k not in ("composed", "blank")
    ],
)
def test_nvcc_compiles_a_new_op(kind: str, tmp_path: Path) -> None:
    op = discover.load_folder(write(kind, tmp_path)).op
    assert has_sources(op, "cuda")
    (library,) = compile.build([plan(op, "cuda", "9.0")])
    assert library.path.exists()
