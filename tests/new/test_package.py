# SPDX-License-Identifier: Apache-2.0
"""`opforge new --package` writes a repository that installs, and whose tests pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from helpers import PATIENCE, python
from new_folders import new, refusal
from typer.testing import CliRunner

import opforge
from opforge import cli
from opforge.new import repository
from opforge.ship.metadata import read_toml

ROOT = Path(__file__).parents[2]
SOURCES = Path(opforge.__file__).parents[1]
SCHEMA = "plain_elementwise(Tensor x, float scale) -> Tensor y"  # other tests compile it, too


def write(into: Path, **options: str) -> Path:
    """The repository of a package "kit" with one elementwise op."""
    given = {"op": None, "kind": "elementwise", "schema": SCHEMA, "license": "mit", **options}
    repository.write(repository.resolve("kit", **given), into)
    return into / "kit"


def test_the_files_are_those_of_a_package(tmp_path: Path) -> None:
    said = new("--package", "kit", "--schema", SCHEMA, "--license", "mit", "--into", tmp_path)
    kit = tmp_path / "kit"
    files = {str(p.relative_to(kit)) for p in kit.rglob("*") if p.is_file()}
    op = "src/kit/plain_elementwise"
    names = ("cpu.cpp", "cuda.cu", "kernel.cuh", "op.py", "test_plain_elementwise.py", "README.md")
    assert files == {
        *(".clang-format", ".github/workflows/ci.yml", ".gitignore", ".pre-commit-config.yaml"),
        *("LICENSE", "README.md", "docs/index.md", "pyproject.toml"),
        *("src/kit/__init__.py", "tests/test_ops.py"),
        *(f"{op}/{name}" for name in names),
    }
    first, second = said.splitlines()[:2]
    assert {f"{op}/{name}" for name in names} | set(first.split("/: ")[1].split(", ")) == files
    assert second == f"{kit}/{op}/: {', '.join(names)}"
    assert "  opforge new NAME --into src/kit  " in said
    assert [p.name for p in tmp_path.iterdir()] == ["kit"]  # no draft is left
    for file in kit.rglob("*"):
        assert file.is_dir() or "[[" not in file.read_text()
        assert file.suffix != ".py" or max(map(len, file.read_text().split("\n"))) <= 100


def test_the_project_says_what_it_needs(tmp_path: Path) -> None:
    kit = write(tmp_path)
    said = read_toml(kit / "pyproject.toml")
    assert said["build-system"]["build-backend"] == "hatchling.build"
    assert said["project"]["dependencies"] == [f"opforge>={opforge.__version__}", "torch>=2.10"]
    assert said["project"]["license"] == "MIT"
    assert said["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/kit"]
    for file in (".github/workflows/ci.yml", ".pre-commit-config.yaml"):
        assert yaml.safe_load((kit / file).read_text())
    steps = yaml.safe_load((kit / ".github/workflows/ci.yml").read_text())["jobs"]["test"]["steps"]
    assert [s["run"] for s in steps if "pytest" in s.get("run", "")] == ["pytest"]


@pytest.mark.parametrize("name", ["kit", "long_" * 9 + "named"])
def test_ruff_finds_nothing(name: str, tmp_path: Path) -> None:
    new("--package", name, "--op", "an_op", "--into", tmp_path)
    for command in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--no-cache", tmp_path / name]
        subprocess.run(ruff, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("license", "spdx", "text"),
    [
        ("mit", "MIT", "Copyright (c) The kit authors"),
        ("bsd-3-clause", "BSD-3-Clause", "3. Neither the name of the copyright holder"),
        ("apache-2.0", "Apache-2.0", (ROOT / "LICENSE").read_text()),
    ],
)
def test_a_licence_is_written_and_named(license: str, spdx: str, text: str, tmp_path: Path) -> None:
    kit = write(tmp_path, license=license)
    assert text in (kit / "LICENSE").read_text()
    assert read_toml(kit / "pyproject.toml")["project"]["license"] == spdx
    assert f"\n{spdx}, see [LICENSE](LICENSE).\n" in (kit / "README.md").read_text()


def test_no_licence_is_the_default(tmp_path: Path) -> None:
    new("--package", "kit", "--into", tmp_path)
    kit = tmp_path / "kit"
    assert not (kit / "LICENSE").exists()
    assert "license" not in read_toml(kit / "pyproject.toml")["project"]
    assert "None is chosen yet" in (kit / "README.md").read_text()
    assert (kit / "src" / "kit" / "kit_op" / "op.py").exists()


def test_a_copy_of_opforge_without_its_licence_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository.metadata, "distribution", missing)
    said = refusal("--package", "kit", "--license", "apache-2.0", "--into", tmp_path)
    assert "install opforge with pip, or choose --license none" in said
    assert list(tmp_path.iterdir()) == []


def missing(name: str) -> None:
    raise repository.metadata.PackageNotFoundError(name)


def test_the_package_has_its_ops_and_finds_another(tmp_path: Path) -> None:
    kit = write(tmp_path)
    new("other", "--kind", "blank", "--into", kit / "src" / "kit")
    code = """
        import sys, kit
        assert "torch" not in sys.modules  # an op loads on first use
        assert kit.__all__ == ["other", "plain_elementwise"]
        assert set(kit.__all__) < set(dir(kit))
        import torch
        from kit import other, plain_elementwise
        x = torch.tensor([3.0], requires_grad=True)
        y = plain_elementwise(x, 0.5)
        y.sum().backward()
        assert (y.tolist(), x.grad.tolist()) == ([4.5], [3.0])
        assert kit.other is other and other(x, 0.5).shape == (1,)
        try:
            kit.another
        except AttributeError as error:
            assert str(error) == "module 'kit' has no attribute 'another'"
        else:
            raise AssertionError
        from opforge import discover
        from opforge.build import load
        print(load.loaded_path(discover.record_of(plain_elementwise), "cpu"))
    """
    environment = {"PYTHONPATH": os.pathsep.join((str(kit / "src"), str(SOURCES)))}
    assert ".so" in python(code, environment=environment).stdout  # the kernel ran


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--package", "my-kit"], "'my-kit' cannot be the name of a package; it takes up to 50 "),
        (["--package", "my-kit"], "beginning with a letter: my_kit"),
        (["--package", "../kit"], "'../kit' is a path; NAME is the package's name alone"),
        (["--package", "../kit"], "opforge new --package kit --into .."),
        (["--package", "class"], "'class' cannot be the name of a package: it is a keyword of"),
        (["--package", "json"], "a module that others import by this name; another name would do"),
        (["--package", "torch"], "such as torch_ops"),
        (["--package", "kit", "--op", "relu"], "'relu' is a built-in op"),
        (["--package", "kit", "--op", "a/b"], "'a/b' is a path; --op is the op's name alone"),
        (["--package", "kit", "--kind", "conv"], "there is no kind 'conv'; kinds are elementwise"),
        (["--package", "kit", "--schema", "softcap(Tensor x"], "cannot be parsed"),
        (
            ["--package", "kit", "--op", "one", "--schema", "two(Tensor x) -> Tensor y"],
            "the schema names the op 'two', but --op is 'one'; leave --op out",
        ),
        (
            ["--package", "kit", "--license", "mti"],
            "there is no licence text for 'mti'; licences are none, apache-2.0, mit, "
            "bsd-3-clause; did you mean 'mit'?",
        ),
        (["softcap", "--op", "one"], "--op is for packages: opforge new --package NAME --op …"),
        (["softcap", "--license", "mit"], "--license is for packages: opforge new --package NAME"),
    ],
)
def test_bad_words_are_explained_and_nothing_is_written(
    words: list[str], text: str, tmp_path: Path
) -> None:
    assert text in refusal(*words, "--into", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_empty_needs_force_which_keeps_other_files(tmp_path: Path) -> None:
    kit = tmp_path / "kit"
    (kit / "src" / "kit").mkdir(parents=True)
    (kit / "notes.txt").write_text("kept")
    said = refusal("--package", "kit", "--into", tmp_path)
    assert said.endswith("or let --force write beside what is in it")
    (kit / "README.md").write_text("mine")
    said = refusal("--package", "kit", "--into", tmp_path)
    assert f"{kit} is not empty; nothing was written" in said
    assert said.endswith("or let --force replace README.md in it")
    assert (kit / "README.md").read_text() == "mine"
    new("--package", "kit", "--into", tmp_path, "--force")
    assert (kit / "README.md").read_text().startswith("# kit\n")
    assert (kit / "notes.txt").read_text() == "kept"
    assert (kit / "src" / "kit" / "kit_op" / "op.py").exists()


@pytest.mark.parametrize("kind", ["link", "file"])
def test_force_writes_into_no_linked_folder_and_replaces_no_file_by_one(
    kind: str, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "kit").mkdir()
    if kind == "link":
        (tmp_path / "kit" / "src").symlink_to(tmp_path / "elsewhere")
    else:
        (tmp_path / "kit" / "src").write_text("mine")
    said = refusal("--package", "kit", "--into", tmp_path, "--force")
    assert f"{tmp_path / 'kit' / 'src'} is no folder of its own; move it" in said
    assert [p.name for p in (tmp_path / "kit").iterdir()] == ["src"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.nightly
def test_it_installs_and_its_tests_pass(tmp_path: Path) -> None:
    kit = write(tmp_path)
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    install += ["--no-build-isolation", "--target", str(site), "."]
    subprocess.run(install, check=True, cwd=kit, timeout=PATIENCE)
    code = "import kit, torch; print(kit.__file__, kit.plain_elementwise(torch.ones(1), 2.0))"
    environment = {"PYTHONPATH": os.pathsep.join((str(site), str(SOURCES)))}
    said = python(code, environment=environment).stdout
    assert said.startswith(str(site))
    assert said.endswith("tensor([2.])\n")
    pytest_run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(
        pytest_run, cwd=kit, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


@pytest.mark.nightly
def test_its_wheel_brings_the_libraries(tmp_path: Path) -> None:
    kit = write(tmp_path)
    words = ["build", "--wheel", str(kit), "--cpu", "--out", str(tmp_path / "dist")]
    result = CliRunner().invoke(cli.app, words, terminal_width=200)
    assert result.exit_code == 0, (result.output, result.exception)
    said = " ".join(result.output.split())  # long lines are broken
    assert "the wheel lacks" not in said
    assert "the wheel does not require" not in said
    (wheel,) = (tmp_path / "dist").glob("kit-0.1.0-py3-none-manylinux*.whl")
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site]
    subprocess.run([*install, wheel], check=True)
    code = """
        import kit, torch
        from opforge import discover
        from opforge.build import load
        assert kit.plain_elementwise(torch.ones(1), 2.0).tolist() == [2.0]
        print(load.loaded_path(discover.record_of(kit.plain_elementwise), "cpu"))
    """
    environment = {"PYTHONPATH": os.pathsep.join((str(site), str(SOURCES))), "CXX": "none"}
    environment |= {"OPFORGE_JIT": "0", "OPFORGE_CACHE_DIR": str(tmp_path / "unused"), "PATH": ""}
    assert str(site) in python(code, environment=environment).stdout
