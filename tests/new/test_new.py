# SPDX-License-Identifier: Apache-2.0
"""`opforge new` writes a readable folder, or explains why not and writes nothing."""

from __future__ import annotations

import os
import re
import shlex
import stat
from pathlib import Path

import pytest
from helpers import python
from new_folders import KINDS, WIDE, new, refusal, write
from typer.testing import CliRunner

from opforge import cli, discover
from opforge.errors import NewError
from opforge.new import folder, request

PAGE = Path(__file__).parents[2] / "docs" / "new.md"


def test_the_command_says_what_it_wrote_and_what_to_do_next(tmp_path: Path) -> None:
    said = new("softcap", "--into", tmp_path)
    place = tmp_path / "softcap"
    assert said.splitlines()[0] == (
        f"{place}/: cpu.cpp, cuda.cu, kernel.cuh, op.py, test_softcap.py, README.md"
    )
    for command in ("check", "bench", "next"):
        assert f"  opforge {command} {place}  " in said
    assert stat.S_IMODE(place.stat().st_mode) & stat.S_IXUSR
    assert [p.name for p in tmp_path.iterdir()] == ["softcap"]  # no draft is left


def test_it_needs_no_compiler_and_leaves_a_folder_that_loads(tmp_path: Path) -> None:
    code = """
        import sys, torch, opforge
        from opforge.cli import app
        app(["new", "softcap", "--into", sys.argv[1]], standalone_mode=False)
        softcap = opforge.load(sys.argv[1] + "/softcap")
        assert softcap(torch.tensor([3.0]), 0.5).tolist() == [4.5]
    """
    nothing = {"CXX": "no-such-compiler", "CUDA_HOME": "/nowhere", "PATH": "/nowhere"}
    python(code, tmp_path, environment={**nothing, "OPFORGE_CACHE_DIR": str(tmp_path / "cache")})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wide", [False, True], ids=["default", "wide"])
def test_every_file_is_short_enough_and_its_lines_as_well(
    kind: str, wide: bool, tmp_path: Path
) -> None:
    place = write(kind, tmp_path, wide)
    long = 96 if wide else 90
    most = {"op.py": long, "kernel.cuh": long, "cuda.cu": 90, "cpu.cpp": 110}
    most["README.md"] = 60
    if kind == "elementwise" and not wide:
        most |= {"cuda.cu": 60, "cpu.cpp": 75}
    for file in place.iterdir():
        lines = file.read_text().split("\n")
        assert len(lines) <= most.get(file.name, 20), file.name
        assert file.suffix == ".md" or max(map(len, lines)) <= 100, file.name
        assert not any(line != line.rstrip() for line in lines), file.name
        assert "[[" not in file.read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_the_marks_are_numbered_in_order_and_the_readme_lists_them(
    kind: str, tmp_path: Path
) -> None:
    place = write(kind, tmp_path)
    found = {}
    for file in place.iterdir():
        for number in re.findall(r"EDIT (\d+):", file.read_text()):
            assert number not in found
            found[number] = file.name
    assert sorted(map(int, found)) == list(range(1, len(found) + 1))
    listed = re.findall(r"^(\d+)\. `([\w.]+)`: ", (place / "README.md").read_text(), re.MULTILINE)
    assert dict(listed) == found


def test_names_of_a_schema_are_those_of_the_files(tmp_path: Path) -> None:
    place = write("elementwise", tmp_path, wide=True)
    op = discover.load_folder(place).op
    assert op.schema == WIDE["elementwise"].format(name=op.name)
    assert op.kernels[1].text == (
        f"{op.name}_backward(Tensor grad_out, Tensor x, Tensor weight, Tensor bias, float scale, "
        "int power, bool flip) -> (Tensor grad_x, Tensor grad_weight, Tensor grad_bias)"
    )
    kernel = (place / "kernel.cuh").read_text()
    assert "A operator()(A grad_out, A x, A weight, A bias) const" in kernel
    assert "double scale;\n  int64_t power;\n  bool flip;" in kernel


SCHEMA = "opforge new {name} --schema"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["class"], "op name 'class' is not valid: it is a keyword of Python or C++; another name"),
        (["namespace"], "it is a keyword of Python or C++; another name would do, such as "),
        (["MyOp"], "letters, digits and single underscores, beginning with a letter: my_op"),
        (["my-op"], "beginning with a letter: my_op"),
        (["2fast"], "beginning with a letter: op_2fast"),
        (["_hidden"], "beginning with a letter: hidden"),
        (["a__b"], "beginning with a letter: a_b"),
        (["größe"], "beginning with a letter: gr_e"),
        (["…"], "beginning with a letter"),
        (["x" * 51], "takes up to 50 lower-case letters"),
        (["../evil"], "'../evil' is a path; NAME is the op's name alone, and --into says in "),
        (["../evil"], "folder it goes: opforge new evil --into .."),
        (["/tmp/evil"], "opforge new evil --into /tmp"),
        ([".."], "cannot be the name of an op"),
        (["relu"], "'relu' is a built-in op, which `opforge check relu` would mean"),
        (["relu"], "choose another name, such as my_relu"),
        (["cases"], "the code of the kind elementwise uses the name 'cases' itself; give the op "),
        (["softcap", "--kind", "elementwize"], "did you mean 'elementwise'?"),
        (["softcap", "--kind", "conv"], "there is no kind 'conv'; kinds are elementwise, row, "),
        (["softcap", "--schema", "softcap"], "write it as 'softcap(Tensor x, float scale) -> "),
        (["softcap", "--schema", "softcap(Tensor x -> Tensor y"], "cannot be parsed"),
        (["softcap", "--schema", "softcap(Tensor x) -> Tensor"], "needs a name"),
        (["softcap", "--schema", "softcap(float s) -> Tensor y"], "an op needs at least one"),
        (["softcap", "--schema", "softcap(Tensor x, Tensor) -> Tensor y"], "cannot be parsed"),
        (["softcap", "--schema", "softcap(Tensor x, float s=1.0) -> Tensor y"], "has a default"),
        (["softcap", "--schema", "softcap(Tensor x, str s) -> Tensor y"], "has type str"),
        (["softcap", "--schema", "softcap(Tensor short) -> Tensor y"], "'short' is not valid"),
        (["softcap", "--schema", "softcap(Tensor X) -> Tensor y"], "'X' is not valid"),
        (["softcap", "--schema", "softcap(Tensor x, Tensor y) -> Tensor y"], "two meanings"),
        (
            ["softcap", "--schema", "other(Tensor x) -> Tensor y"],
            "the schema names the op 'other', but NAME is 'softcap'; give both the same name, as "
            "in: opforge new softcap --schema 'softcap(Tensor x) -> Tensor y'",
        ),
        (
            ["softcap", "--schema", "softcap(Tensor x, Tensor make) -> Tensor y"],
            "uses the name 'make' itself; give the argument another, as in make_value",
        ),
        (
            ["softcap", "--schema", "softcap(Tensor x) -> Tensor op"],
            "uses the name 'op' itself; give the output another, as in op_value",
        ),
        (
            ["softcap", "--schema", "softcap(Tensor x, Tensor? m) -> Tensor y"],
            "Tensor? m: the kind elementwise takes any number of Tensor, float, int and bool "
            "arguments, and returns one Tensor; the kinds composed and blank also take Tensor?",
        ),
        (
            ["softcap", "--schema", "softcap(Tensor x, int[] dims) -> Tensor y"],
            "int[] dims: the kind elementwise takes any number of Tensor, float, int and bool "
            "arguments, and returns one Tensor; add it to the record afterwards",
        ),
        (
            ["softcap", "--schema", "softcap(float s, Tensor x) -> Tensor y"],
            "the first argument must be a Tensor",
        ),
        (
            ["softcap", "--schema", "softcap(Tensor x) -> (Tensor y, Tensor z)"],
            "returns one Tensor; add other outputs to the record afterwards",
        ),
        (["softcap", "--schema", "softcap(Tensor x, int eps) -> Tensor y"], "make it a float"),
        (
            ["softcap", "--schema", "softcap(Tensor x, float p, int seed) -> Tensor y"],
            "p and seed are those of a random mask to opforge, and no kind has one; rename one",
        ),
        (
            ["mm", "--kind", "matmul", "--schema", "mm(Tensor a) -> Tensor c"],
            "has 1 tensors: the kind matmul takes two Tensor, float, int and bool arguments",
        ),
        (
            ["blur", "--kind", "stencil", "--schema", "blur(Tensor a, Tensor b) -> Tensor c"],
            "has 2 tensors: the kind stencil takes one Tensor, float, int and bool arguments",
        ),
    ],
)
def test_bad_words_are_explained_and_nothing_is_written(
    words: list[str], text: str, tmp_path: Path
) -> None:
    assert text in refusal(*words, "--into", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_empty_stays_as_it_is(tmp_path: Path) -> None:
    place = tmp_path / "softcap"
    place.mkdir()
    (place / "op.py").write_text("mine")
    said = refusal("softcap", "--into", tmp_path)
    assert f"{place} is not empty; nothing was written" in said
    assert said.endswith("or let --force replace op.py in it")
    assert [p.name for p in place.iterdir()] == ["op.py"]
    assert (place / "op.py").read_text() == "mine"


def test_force_replaces_files_of_the_same_names_and_no_other(tmp_path: Path) -> None:
    place = tmp_path / "softcap"
    place.mkdir()
    (place / "op.py").write_text("mine")
    (place / "notes.txt").write_text("kept")
    new("softcap", "--into", tmp_path, "--force")
    assert "def softcap(" in (place / "op.py").read_text()
    assert (place / "notes.txt").read_text() == "kept"


def test_force_replaces_no_link_and_no_folder(tmp_path: Path) -> None:
    place = tmp_path / "softcap"
    place.mkdir()
    (tmp_path / "elsewhere.py").write_text("mine")
    (place / "op.py").symlink_to(tmp_path / "elsewhere.py")
    said = refusal("softcap", "--into", tmp_path, "--force")
    assert f"{place / 'op.py'} is no plain file, and is not replaced; move it" in said
    assert (tmp_path / "elsewhere.py").read_text() == "mine"
    assert sorted(p.name for p in place.iterdir()) == ["op.py"]


def test_an_empty_folder_is_taken_and_a_file_or_a_link_is_not(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    new("empty", "--into", tmp_path)
    assert (tmp_path / "empty" / "op.py").exists()
    (tmp_path / "taken").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for name in ("taken", "link"):
        assert "is there and is no folder; move it" in refusal(name, "--into", tmp_path, "--force")
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = refusal("softcap", "--into", tmp_path / "file")
    assert f"{tmp_path / 'file' / 'softcap'} cannot be written" in said


def test_a_failure_while_writing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    wanted = request.resolve("softcap", "elementwise", None)
    with pytest.raises(NewError, match="cannot be written: No space left on device"):
        folder.write(wanted, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_page_shows_what_the_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "cache"))
    blocks = re.findall(r"^\$ opforge (.*)\n((?:.*\n)*?)```", PAGE.read_text(), re.MULTILINE)
    assert [words.split()[0] for words, _ in blocks] == ["new", "next", "new"]
    for words, shown in blocks:
        result = CliRunner().invoke(cli.app, shlex.split(words))
        printed = "".join(f"{line.rstrip()}\n" for line in result.stdout.splitlines())
        assert printed == shown


def test_the_page_and_the_help_list_every_kind() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert listed == KINDS
    said = CliRunner().invoke(cli.app, ["new", "--help"], terminal_width=200).output
    assert all(kind in said for kind in KINDS)
