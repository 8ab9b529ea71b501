# SPDX-License-Identifier: Apache-2.0
"""The check finds what it has not exercised: cases by coverage, and code that none reaches."""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from check_command import command
from helpers import PATIENCE

from opforge import discover, testing
from opforge.check.place import Place
from opforge.check.results import FAILED, PASSED
from opforge.check.search import stored
from opforge.check.search.learned import sizes_for
from opforge.check.search.recipe import Recipe, from_json
from opforge.check.search.search import Found, Kept, Search
from opforge.errors import RecordError
from opforge.truth.coverage.lines import Source

HERE = Path(__file__).parent
CPU, CUDA = HERE / "special_paths", HERE / "special_widths"
# A path that only some cases take, made wrong: by the words of its comment.
WRONG = {
    "scale": ("factor * T(1));  // scale", "factor * T(1.01));  // scale"),
    "width": ("factor * T(1));  // width", "factor * T(1.01));  // width"),
    "long": ("factor * T(1));  // long", "factor * T(1.01));  // long"),
    "strided": ("factor * T(1));  // strided", "factor * T(1.01));  // strided"),
    "frozen": ("g * data<T>(x)[i", "(needs_x ? g : g_step[1] == 1 ? g : 2 * g) * data<T>(x)[i"),
}
WRONG_CUDA = {
    "kernel": ("2 * p.x[i * p.step];  // in the kernel", "3 * p.x[i * p.step];  // in the kernel"),
    "host": ("threads = 128;  // on the host", "p.count -= 1;  // on the host"),
    "small": ("threads = 512;  // on a small GPU", "p.count -= 1;  // on a small GPU"),
}


def copy(folder: Path, to: Path, change: tuple[str, str] = ("", "")) -> Path:
    shutil.copytree(folder, to / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    for source in (to / folder.name).glob("c*.c*"):
        text = source.read_text()
        assert change[0] in text
        source.write_text(text.replace(*change) if change[0] else text)
    return to / folder.name


def with_cases(folder: Path) -> Path:
    """The stored cases as if they had been found with these very sources: nothing is searched."""
    op = discover.find(str(folder))
    file = folder / stored.FILE
    cases = [from_json(c) for c in json.loads((CPU / stored.FILE).read_text())["cpu"]["cases"]]
    stored.save(file, op, "cpu", stored.Stored(cases, stored.sources(op, "cpu"), stored.FULL))
    return folder


def rejected(folder: Path, place: str, row: str) -> str:
    with pytest.raises(testing.CheckFailed) as failure:
        testing.check(folder, on=[place], only=[row])
    (result,) = failure.value.report.ops[0].results
    assert result.outcome == FAILED
    again = subprocess.run(
        [sys.executable, "-c", result.script], capture_output=True, timeout=PATIENCE
    )
    assert again.returncode != 0, result.script
    return result.text


@pytest.mark.nightly
@pytest.mark.parametrize("path", WRONG)
def test_a_fault_on_a_path_that_only_a_search_finds_is_rejected(tmp_path, path):
    folder = copy(CPU, tmp_path, WRONG[path])
    (folder / stored.FILE).unlink()
    text = rejected(folder, "cpu", "found-cases")
    assert "special_paths: error" in text, text


@pytest.mark.nightly
@pytest.mark.sim
def test_so_is_one_that_takes_more_elements_than_a_test_has_for_the_usual_gpu(tmp_path):
    text = rejected(copy(CUDA, tmp_path, WRONG_CUDA["small"]), "sim", "found-cases")
    assert re.search(r"with x float32 \(\d{5},\), multiprocessors 1$", text), text


@pytest.mark.nightly
@pytest.mark.sim
@pytest.mark.parametrize(("path", "size"), [("kernel", 4099), ("host", 303)])
def test_so_is_one_in_a_cuda_kernel_and_in_its_host_code(tmp_path, path, size):
    text = rejected(copy(CUDA, tmp_path, WRONG_CUDA[path]), "sim", "found-cases")
    assert f"with x float32 ({size},)" in text, text


@pytest.mark.nightly
def test_a_crash_names_the_case_that_led_to_it(tmp_path):
    change = ("factor * T(1));  // width", "*reinterpret_cast<volatile T*>(8));")
    folder = copy(CPU, tmp_path, change)
    (folder / stored.FILE).unlink()
    with pytest.raises(testing.CheckFailed) as failure:
        testing.check(folder, on=["cpu"], only=["found-cases"])
    (result,) = failure.value.report.ops[0].results
    assert "ended by SIGSEGV" in result.text
    assert re.search(r"its last words: .*x float\d\d \(\d+, 96\)", result.text), result.text


@pytest.mark.nightly
def test_an_index_beyond_an_array_is_a_fault_though_memory_is_there(tmp_path):
    beyond = (
        "  const T some[] = {T(scale), T(1), T(scale)};\n  const T factor = some[cols % 2 * 3];\n"
    )
    folder = with_cases(copy(CPU, tmp_path, (BEFORE, beyond)))
    with pytest.raises(testing.CheckFailed) as failure:
        testing.check(folder, on=["cpu"], only=["coverage"])
    (result,) = failure.value.report.ops[0].results
    assert "ended by SIGILL (in a check build, an index beyond an array)" in result.text


@pytest.mark.nightly
@pytest.mark.sim
def test_races_are_looked_for_in_found_cases_too(tmp_path):
    own = "2 * p.x[i * p.step];  // in the kernel"
    folder = copy(CUDA, tmp_path, (own, own.replace(";", " + 0 * p.y[i ^ 1];")))
    text = rejected(folder, "sim", "sanitizer")
    assert "with x float32 (4099,)" in text, text


DEAD = """\
  if (cols == -7) {
    multiply<T>(y, x, w, T(3));
  }
"""
BEFORE = "  const T factor = T(scale);\n"


def check_dead(tmp_path: Path, code: str, full: bool) -> testing.Report:
    folder = with_cases(copy(CPU, tmp_path, (BEFORE, BEFORE + code)))
    try:
        return testing.check(folder, on=["cpu"], only=["coverage"], full=full)
    except testing.CheckFailed as failure:
        return failure.report


@pytest.mark.nightly
def test_code_that_no_case_reaches_is_named_and_fails_in_full(tmp_path):
    report = check_dead(tmp_path / "full", DEAD, full=True)
    (result,) = report.ops[0].results
    assert result.outcome == FAILED
    text = (tmp_path / "full" / CPU.name / "cpu.cpp").read_text()
    line = text[: text.index("T(3)")].count("\n") + 1
    assert f"not reached: cpu.cpp:{line} (cols == -7)\n" in result.text
    assert "`// unreached: <reason>`" in result.text

    folder = with_cases(tmp_path / "full" / CPU.name)
    (result,) = testing.check(folder, on=["cpu"], only=["coverage"]).ops[0].results
    assert result.outcome == PASSED
    assert f"not reached: cpu.cpp:{line} (cols == -7)" in result.text
    assert 0.9 < result.coverage["share"] < 1


@pytest.mark.nightly
def test_code_named_with_a_reason_passes_in_full(tmp_path):
    code = DEAD.replace("{\n", "{  // unreached: sizes are not negative\n", 1)
    (result,) = check_dead(tmp_path, code, full=True).ops[0].results
    assert result.outcome == PASSED, result.text
    assert result.text.startswith("100% of ")
    assert "1 marked as unreached" in result.text


@pytest.mark.nightly
def test_a_mark_without_a_reason_is_an_error(tmp_path):
    code = DEAD.replace("{\n", "{  // unreached:\n", 1)
    (result,) = check_dead(tmp_path, code, full=False).ops[0].results
    assert result.outcome == FAILED
    assert "`// unreached:` without a reason; say why no test gets there" in result.text


@pytest.mark.nightly
def test_found_cases_are_kept_in_the_folder_on_request(tmp_path):
    folder = copy(CPU, tmp_path)
    (folder / stored.FILE).unlink()
    done = command(folder, "--on", "cpu", "--only", "found-cases", "--keep-cases")
    assert done.returncode == 0, done.stdout
    assert f"found cases: {folder / stored.FILE}" in done.stdout
    op = discover.find(str(folder))
    recipes = stored.load(op, "cpu").recipes
    assert any(dict(r.options).get("scale") == 2.0 for r in recipes)
    assert any(96 in dict(r.sizes).values() for r in recipes)
    assert any(r.only == 1 for r in recipes)


def test_a_search_is_the_same_for_the_same_seed():
    def some(seed: int) -> list[Recipe]:
        search = Search(discover.find(str(CPU)), "cpu", seed)
        base = next(search.mutator.seeds())
        return [search.mutator.any(base) for _ in range(50)]

    assert some(0) == some(0)
    assert some(0) != some(1)


@pytest.mark.nightly
def test_what_was_found_before_is_run_again_however_long_it_takes(monkeypatch):
    """A guess by the first case, which loads the library, once left out all larger ones."""
    monkeypatch.setattr(Search, "_would_take", lambda self, elements: math.inf)
    search = Search(discover.find("relu"), "cpu")
    first, second, third = Recipe(1, "float16"), Recipe(1, "float32"), Recipe(1, "float64")
    search.replay([first, second])
    assert {first, second} <= {k.recipe for k in search.found.kept}
    assert not search.run(third)


def test_the_only_case_that_reaches_a_line_is_kept_however_slow():
    slow = Kept(Recipe(1, "float32"), frozenset({"kernel.cuh:7"}), 100.0)
    quick = Kept(Recipe(2, "float32"), frozenset({"kernel.cuh:3"}), 0.1)
    of_an_outcome = Kept(Recipe(3, "float32"), frozenset({"kernel.cuh:3 = 1"}), 100.0)
    found = Found([slow, quick, of_an_outcome])
    assert found.recipes == [quick.recipe, slow.recipe]


def test_changes_of_every_kind_come_early_and_lists_name_dims_that_cannot_be_merged():
    mutator = Search(discover.find("reduce_sum"), "sim").mutator
    case = next(i for i, s in enumerate(mutator.own) if s.tensors["x"].dim() == 4)
    first = list(itertools.islice(mutator.neighbours(Recipe(case, "float32")), 6))
    kinds = ["layouts", "processors", "dims", "options", "sizes", "dtypes"]
    assert all(kind in r.as_json() for kind, r in zip(kinds, first, strict=True))
    (deep,) = [r for r in first if r.dims]
    assert deep.options == (("dim", tuple(range(0, 18, 2))),)
    assert deep.apply(mutator.own[case]).tensors["x"].shape == (2,) * 17


def test_a_recipe_is_json_and_makes_its_case_again():
    recipe = Recipe(
        1,
        "float64",
        sizes=((33, 96),),
        options=(("scale", 2.0),),
        values=(("w", "put", -float("inf")),),
        layouts=(("x", "stepped"),),
        gradient="narrow_gradient",
        only=1,
    )
    again = from_json(json.loads(json.dumps(recipe.as_json())))
    assert again == recipe
    s = again.situation(discover.find(str(CPU)), Place("cpu"), 0)
    assert s.describe() == "x float64 (5, 96) strides (192, 2), w float64 (96,), scale 2.0"
    with pytest.raises(RecordError, match="no longer has case 7"):
        Recipe(7, "float32").situation(s.op, Place("cpu"), 0)


def test_sizes_are_aimed_at_what_they_are_compared_with():
    assert {95, 96, 97, 192} <= set(sizes_for((96, 33), 33))  # the size itself
    assert {2047, 2048, 2049} <= set(sizes_for((1 << 20, 512 * 100), 100))  # 512 of it
    assert {100, 99, 101} <= set(sizes_for((64, 97), 133))  # 36 less than it
    assert sizes_for((1 << 40, 5), 5) == [4, 6] or 1 << 40 not in sizes_for((1 << 40, 5), 5)


def test_marks_stand_for_a_line_or_for_what_a_brace_opens(tmp_path):
    file = tmp_path / "kernel.cuh"
    file.write_text(
        "int f(int n) {\n"
        "  if (n > 9) return 1;  // unreached: one\n"
        "  // unreached: next\n"
        "  n += 1;\n"
        "  if (n > 5) {\n"
        "    n = 5;\n"
        "  } else {  // unreached: block\n"
        "    n = 6;\n"
        "    n = 7;\n"
        "  }\n"
        "  return n;\n"
        "}\n"
    )
    source = Source.read(file)
    assert source.reasons == {2: "one", 4: "next", 7: "block", 8: "block", 9: "block", 10: "block"}
    assert source.condition(2) == "n > 9"
    assert source.condition(6) == "n > 5"
    assert source.condition(9) == "else of n > 5"
    assert source.condition(11) == "return n;"
