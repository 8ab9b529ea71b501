# SPDX-License-Identifier: Apache-2.0
"""Wheels: of an op folder, of a Python project with op folders, of opforge itself."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import platform
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from helpers import REAL_CXX, python, stub_cxx, write_op
from packaging.metadata import Metadata
from typer.testing import CliRunner

from opforge import cli, discover, history
from opforge.build import cache
from opforge.errors import OpforgeError

MACHINE = platform.machine()
LIBRARY = f"manylinux_2_24_{MACHINE}"  # what a kernel needs that uses strings and vectors


def run(*arguments: object) -> str:
    """What `opforge build --wheel` prints; it must succeed."""
    command = ["build", "--wheel", *(str(a) for a in arguments)]
    result = CliRunner().invoke(cli.app, command, terminal_width=200)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def refused(*arguments: object) -> str:
    """The error of `opforge build --wheel`."""
    result = CliRunner().invoke(cli.app, ["build", "--wheel", *(str(a) for a in arguments)])
    assert isinstance(result.exception, OpforgeError), (result.output, result.exception)
    return str(result.exception)


def content(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel. Each is in its RECORD, with its digest and size."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    name = next(n for n in files if n.endswith(".dist-info/RECORD"))
    rows = list(csv.reader(io.StringIO(files[name].decode())))
    assert [row[0] for row in rows] == list(files)
    for path, digest, size in rows:
        if path != name:
            found = base64.urlsafe_b64encode(hashlib.sha256(files[path]).digest()).rstrip(b"=")
            assert digest == f"sha256={found.decode()}"
            assert size == str(len(files[path]))
    return files


def about(files: dict[str, bytes]) -> Message:
    """The metadata of a wheel, which must be valid."""
    text = next(v for k, v in files.items() if k.endswith(".dist-info/METADATA")).decode()
    Metadata.from_email(text, validate=True)
    return Parser().parsestr(text)


@pytest.fixture
def stub(tmp_path: Path, cache_dir: Path, untried: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that makes empty libraries in no time; returns where wheels go."""
    monkeypatch.setenv("CXX", str(stub_cxx(tmp_path / "bin").path))
    return tmp_path / "dist"


def project(folder: Path, *ops: str, requires: str = "opforge>=0.1") -> Path:
    """A Python project whose package holds op folders."""
    for name in ops:
        write_op(folder / "src" / "pack" / "ops" / name, name=name)
    (folder / "src" / "pack").mkdir(parents=True, exist_ok=True)
    (folder / "src" / "pack" / "__init__.py").write_text('"""A pack."""\n')
    (folder / "README.md").write_text("# pack\n")
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "my-pack"\nversion = "1.2"\nreadme = "README.md"\n'
        'requires-python = ">=3.10"\n'
        f'dependencies = ["{requires}"]\n[project.scripts]\nmy-pack = "pack:main"\n'
        '[tool.hatch.build.targets.wheel]\npackages = ["src/pack"]\n'
    )
    return folder


def test_a_wheel_of_an_op_folder_installs_and_runs_without_a_compiler(
    tmp_path: Path, kernel_folder: Path, built: cache.Library
) -> None:
    text = run(kernel_folder, "--cpu", "--out", tmp_path / "dist")
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name == f"twofold-0.1.0-py3-none-{LIBRARY}.whl"
    assert f"wheel: {wheel}" in text
    assert f"{LIBRARY}: twofold-cpu.so needs " in text
    files = content(wheel)
    info = "twofold-0.1.0.dist-info"
    assert set(files) == {
        *(f"twofold/{n}" for n in ("__init__.py", "op.py", "cpu.cpp")),
        *(f"twofold/prebuilt/twofold-cpu.{suffix}" for suffix in ("so", "json")),
        *(f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD")),
    }
    assert f"Tag: py3-none-{LIBRARY}\n" in files[f"{info}/WHEEL"].decode()
    said = about(files)
    assert said.get_all("Requires-Dist")[0] == "torch>=2.10"
    assert said["Requires-Python"] == ">=3.10"
    assert f"| cpu | {MACHINE} | – | {built.manifest['key'][:20]} |" in said.get_payload()
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site]
    subprocess.run([*install, wheel], check=True)
    code = """
        import pytest, torch, twofold
        assert twofold.twofold(torch.ones(2)).tolist() == [2, 2]
        with pytest.raises(RuntimeError, match="x must be contiguous"):
            twofold.twofold(torch.ones(2, 3).t())
        from opforge.build import load
        print(load.loaded_path(twofold.twofold, "cpu"))
    """
    environment = {"PYTHONPATH": str(site), "PATH": "", "CXX": "none", "OPFORGE_JIT": "0"}
    environment["OPFORGE_CACHE_DIR"] = str(tmp_path / "unused")
    assert str(site) in python(code, environment=environment).stdout


def test_a_wheel_of_the_builtin_ops_is_opforge_itself(tmp_path: Path) -> None:
    run("relu", "--cpu", "--out", tmp_path)
    (wheel,) = tmp_path.glob(f"opforge-*-py3-none-{LIBRARY}.whl")
    files = content(wheel)
    assert {"opforge/__init__.py", "opforge/ops/relu/prebuilt/relu-cpu.so"} <= set(files)
    assert {"opforge/include/opforge/host.h", "opforge/__init__.pyi"} <= set(files)
    assert {"opforge/py.typed"} <= set(files)
    assert about(files)["Name"] == "opforge"


def test_a_wheel_of_a_project_is_its_own_with_the_libraries(tmp_path: Path, stub: Path) -> None:
    folder = project(tmp_path / "project", "one", "two")
    text = run(folder, "--cpu", "--out", stub)
    (wheel,) = stub.iterdir()
    assert wheel.name == f"my_pack-1.2-py3-none-manylinux_2_17_{MACHINE}.whl"
    files = content(wheel)
    for op in ("one", "two"):
        names = ("op.py", "cpu.cpp", f"prebuilt/{op}-cpu.so", f"prebuilt/{op}-cpu.json")
        assert {f"pack/ops/{op}/{name}" for name in names} <= set(files)
    assert b"Root-Is-Purelib: false\n" in files["my_pack-1.2.dist-info/WHEEL"]
    assert b"my-pack = pack:main" in files["my_pack-1.2.dist-info/entry_points.txt"]
    assert about(files).get_payload() == "# pack\n"
    assert "does not require opforge" not in text


def test_what_a_project_should_not_forget(tmp_path: Path, stub: Path) -> None:
    folder = project(tmp_path / "project", "one", requires="torch")
    with (folder / "pyproject.toml").open("a") as file:
        file.write('exclude = ["*.cpp"]\n')
        file.write('[project.optional-dependencies]\ndev = ["opforge[check]"]\n')  # not enough
    text = run(folder, "--cpu", "--out", stub)
    assert "warning: the wheel does not require opforge" in text
    assert "warning: the wheel lacks cpu.cpp of one" in text


def test_an_op_folder_may_say_more_in_pyproject(tmp_path: Path, stub: Path) -> None:
    folder = write_op(tmp_path / "repository" / "op", name="described")
    (folder / "README.md").write_text("# Described\n")
    (folder / ".hidden").write_text("")
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "my.Described"\nversion = "2.0rc1"\ndescription = "What it\\ndoes"\n'
        'license = "MIT"\ndependencies = ["einops>=0.8"]\nauthors = [{name = "A"}, {name = "B", '
        'email = "b@example.org"}]\nkeywords = ["fast", "new"]\n'
        'classifiers = ["Programming Language :: C++"]\nurls = {Home = "https://example.org"}\n'
    )
    (folder / "LICENSE").write_text("MIT\n")
    run(folder, "--cpu", "--out", stub)
    (wheel,) = stub.iterdir()
    assert wheel.name.startswith("my_described-2.0rc1-py3-none-manylinux_2_17_")
    files = content(wheel)
    assert files["my_described-2.0rc1.dist-info/licenses/LICENSE"] == b"MIT\n"
    assert "described/.hidden" not in files
    said = about(files)
    assert (said["Name"], said["Summary"]) == ("my.Described", "What it does")
    assert (said["License-Expression"], said["License-File"]) == ("MIT", "LICENSE")
    assert (said["Author"], said["Author-email"]) == ("A", "B <b@example.org>")
    assert (said["Keywords"], said["Project-URL"]) == ("fast,new", "Home, https://example.org")
    assert said.get_all("Requires-Dist")[-1] == "einops>=0.8"
    assert said.get_payload().startswith("# Described\n\n## Compiled kernels\n")


def test_a_repository_gives_its_ops_version_license_and_authors(tmp_path: Path, stub: Path) -> None:
    above = tmp_path / "repository"
    folder = write_op(above / "ops" / "op", name="inner")
    (above / "pyproject.toml").write_text(
        '[project]\nname = "whole"\nversion = "3.1"\ndescription = "All of it"\nlicense = "MIT"\n'
    )
    (above / "LICENSE").write_text("MIT\n")
    (folder / "docs.toml").write_text('summary = "One of them."\n')
    run(folder, "--cpu", "--out", stub)
    (wheel,) = stub.iterdir()
    said = about(content(wheel))
    assert (said["Name"], said["Version"]) == ("inner", "3.1")
    assert (said["Summary"], said["License-Expression"]) == ("One of them.", "MIT")
    # Not beyond a repository's top.
    (folder.parent / ".git").mkdir()
    run(folder, "--cpu", "--out", stub / "again")
    assert [p.name.split("-")[1] for p in (stub / "again").iterdir()] == ["0.1.0"]


def test_the_same_files_make_the_same_wheel_and_replace_the_old_one(
    tmp_path: Path, stub: Path
) -> None:
    folder = write_op(tmp_path / "op", name="again")
    run(folder, "--cpu", "--out", stub)
    (wheel,) = stub.iterdir()
    assert wheel.suffix == ".whl"
    first = wheel.read_bytes()
    wheel.write_text("an older one")
    run(folder, "--cpu", "--out", stub)
    assert wheel.read_bytes() == first
    assert list(stub.iterdir()) == [wheel]


def test_warns_of_an_op_without_a_check_of_what_it_is_now(tmp_path: Path, stub: Path) -> None:
    folder = write_op(tmp_path / "op", name="unproven")
    op = discover.load_folder(folder).op

    def said() -> str:
        return run(folder, "--cpu", "--out", stub)

    assert f"unproven was never checked on this machine; run: opforge check {folder}" in said()
    history.keep(op, "check", {"failed": 1, "impossible": ""})
    assert "warning: unproven did not pass its last check" in said()
    history.keep(op, "check", {"failed": 0, "impossible": "no compiler"})
    assert "warning: unproven did not pass its last check" in said()
    history.keep(op, "check", {"failed": 0, "impossible": ""})
    assert "warning" not in said()
    with (folder / "cpu.cpp").open("a") as file:
        file.write("// changed\n")
    assert "warning: unproven has changed since its last check" in said()
    assert history.last(op, "build")["targets"] == ["cpu"]
    assert history.last(op, "ship")["what"] == str(next(stub.iterdir()))


OPENER = """
extern "C" void opener() __asm__("opener");
__asm__(".symver opener,dlopen@GLIBC_2.34");
void kept() { opener(); }
"""


@pytest.mark.parametrize(
    ("needs", "tag", "said"),
    [
        ("libmine.so", f"linux_{MACHINE}", ("libmine.so, which is", "refuse this tag")),
        ("newer.cpp", f"manylinux_2_34_{MACHINE}", ("(GLIBC_2.34)", "installs on older systems")),
    ],
)
def test_says_what_decided_the_tag(
    tmp_path: Path, stub: Path, needs: str, tag: str, said: tuple[str, str]
) -> None:
    link = [REAL_CXX, "-shared", "-fPIC", "-Wl,--no-as-needed"]
    (tmp_path / "newer.cpp").write_text(OPENER)
    subprocess.run([*link, "-Wl,-soname,libmine.so", "-o", tmp_path / "libmine.so"], check=True)
    stub_cxx(tmp_path / "bin", on_link=f'{shlex.join(link)} {tmp_path / needs} -o "$out"')
    text = run(write_op(tmp_path / "op", name="tagged"), "--cpu", "--out", stub)
    assert f"{tag}: tagged-cpu.so needs " in text
    assert all(words in text for words in said)
    assert [p.name for p in stub.iterdir()] == [f"tagged-0.1.0-py3-none-{tag}.whl"]


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        ("file", r"--out .*taken is a file; it takes the folder for the wheel"),
        ("name", r"--out .*x\.whl: --out takes the folder .*; use --out .*dist"),
        ("no op", r"holds no op folder \(a folder with an op\.py that makes an Op\)"),
        ("two projects", r"a wheel holds one project; build .*project by itself"),
        ("two folders", r"one op folder of your own; build them one by one, or the Python project"),
        ("toml", r"pyproject\.toml cannot be read: .*line 1"),
        ("backend", r"the wheel of .*project cannot be built: .*no_such_backend"),
        ("version", r"pyproject\.toml: 'one' is not a version; write it like 0\.1\.0"),
        ("distribution", r"'_odd' cannot be the name of a wheel: .*name = \"odd\""),
        ("dependency", r"dependency '>>' is malformed"),
        ("no source", r"nothing to build: bare has no source for cpu"),
        ("compiler", r"no C\+\+ compiler found \(CXX=none\); install g\+\+"),
    ],
)
def test_bad_input_is_an_error_and_leaves_nothing(
    tmp_path: Path, stub: Path, monkeypatch: pytest.MonkeyPatch, problem: str, text: str
) -> None:
    folder = write_op(tmp_path / "op", name="plain")
    arguments: list[object] = [folder]
    out = stub
    if problem == "file":
        out = tmp_path / "taken"
        out.write_text("")
    elif problem == "name":
        out = stub / "x.whl"
    elif problem in ("no op", "two projects", "toml", "backend"):
        arguments = [project(tmp_path / "project", *(["one"] if problem != "no op" else []))]
        file = arguments[0] / "pyproject.toml"
        if problem == "two projects":
            arguments.append(folder)
        elif problem == "toml":
            file.write_text("[project\n")
        elif problem == "backend":
            file.write_text(file.read_text().replace('"hatchling.build"', '"no_such_backend"'))
    elif problem == "two folders":
        arguments.append(write_op(tmp_path / "other", name="other"))
    elif problem == "version":
        (folder / "pyproject.toml").write_text('[project]\nversion = "one"\n')
    elif problem == "dependency":
        (folder / "pyproject.toml").write_text('[project]\ndependencies = [">>"]\n')
    elif problem == "distribution":
        arguments = [write_op(tmp_path / "odd", name="_odd")]
    elif problem == "no source":
        arguments = [write_op(tmp_path / "bare", name="bare", cpp=None)]
    elif problem == "compiler":
        monkeypatch.setenv("CXX", "none")
    before = sorted(tmp_path.rglob("*.whl"))
    said = refused(*arguments, "--cpu", "--out", out)
    assert re.search(text, " ".join(said.split())), said
    assert sorted(tmp_path.rglob("*.whl")) == before
    assert not stub.exists()


def test_a_wheel_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, stub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_op(tmp_path / "op", name="kept")
    run(folder, "--cpu", "--out", stub)
    (wheel,) = stub.iterdir()
    wheel.write_text("the old one")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    assert refused(folder, "--cpu", "--out", stub) == (
        f"{wheel} cannot be written: No space left on device"
    )
    assert {p: p.read_text() for p in stub.iterdir()} == {wheel: "the old one"}


def test_without_readelf_nobody_knows_the_tag(
    tmp_path: Path, stub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "readelf" else found(name))
    folder = write_op(tmp_path / "op", name="unread")
    assert "install binutils" in refused(folder, "--cpu", "--out", stub)
    assert not stub.exists()
