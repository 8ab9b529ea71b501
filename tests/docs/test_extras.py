# SPDX-License-Identifier: Apache-2.0
"""Ops work without the packages of the extras, and a command that needs one names it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import PATIENCE, python
from packaging.requirements import Requirement

import opforge
from opforge.terminal import extras

# As if modules were not installed: for import statements, and for importlib.util.find_spec.
HIDES = """\
import importlib.util
import os
import sys

hidden = os.environ["HIDDEN"].split()
find_spec = importlib.util.find_spec


class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Refuses())
importlib.util.find_spec = lambda name, *rest: None if name in hidden else find_spec(name, *rest)
"""
CHECK_LINE = "opforge check needs hypothesis; install it with: pip install 'opforge[check]'"


def without(folder: Path, *modules: str) -> dict[str, str]:
    """The environment of a Python in which these modules are not installed."""
    (folder / "sitecustomize.py").write_text(HIDES)
    path = os.pathsep.join([str(folder), *sys.path])
    return {**os.environ, "PYTHONPATH": path, "HIDDEN": " ".join(modules)}


def every_module() -> list[str]:
    return [module for packages in extras.EXTRAS.values() for module in packages.values()]


def command(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opforge", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.mark.parametrize(
    ("arguments", "hidden", "line"),
    [
        (["check", "relu"], ["hypothesis"], CHECK_LINE),
        (
            ["check", "relu"],
            ["expecttest", "numpy"],
            "opforge check needs expecttest and numpy; install them with: "
            "pip install 'opforge[check]'",
        ),
        (
            ["bench", "relu"],
            ["pynvml"],
            "opforge bench needs nvidia-ml-py; install it with: pip install 'opforge[bench]'",
        ),
        (
            ["sim", "relu"],
            ["hypothesis", "numpy"],
            "opforge sim needs numpy; install it with: pip install 'opforge[check]'",
        ),
    ],
)
def test_a_command_names_the_package_it_lacks(tmp_path, arguments, hidden, line) -> None:
    done = command(*arguments, environment=without(tmp_path, *hidden))
    assert (done.returncode, done.stderr, done.stdout) == (2, f"opforge: {line}\n", "")


def test_from_python_the_message_is_the_same(tmp_path) -> None:
    code = """
        import opforge.testing
        from opforge.errors import MissingPackage
        for function in (opforge.testing.check, opforge.testing.matrix):
            try:
                function("relu")
            except MissingPackage as error:
                print(error)
    """
    said = python(code, environment=without(tmp_path, "hypothesis")).stdout
    assert said == f"{CHECK_LINE}\n" * 2


def test_ops_work_without_any_extra(tmp_path, kernel_folder, built) -> None:
    code = """
        import sys, torch, opforge
        x = torch.ones(3)
        assert opforge.load(sys.argv[1])(x).tolist() == [2, 2, 2]
        assert opforge.nn.ReLU() and opforge.relu and opforge.rms_norm
        assert opforge.sim.active and opforge.launch_config and opforge.nvtx
        print([m for m in sys.argv[2:] if m in sys.modules])
    """
    hidden = every_module()
    said = python(code, kernel_folder, *hidden, environment=without(tmp_path, *hidden)).stdout
    assert said == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["check", "--rows"], "own-cases"), (["list", "relu"], "relu(Tensor x)")],
)
@pytest.mark.nightly
def test_other_commands_need_no_extra(tmp_path, arguments, said) -> None:
    done = command(*arguments, environment=without(tmp_path, *every_module()))
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


@pytest.mark.nightly
def test_doctor_lists_the_extras(tmp_path) -> None:
    done = command("doctor", "--json", environment=without(tmp_path, "hypothesis"))
    found = {f["what"]: f for f in json.loads(done.stdout)}
    assert found["opforge[check]"]["state"] == "note"
    assert found["opforge[check]"]["found"] == "not installed: hypothesis"
    assert found["opforge[check]"]["remedy"] == "pip install 'opforge[check]'"
    assert found["opforge[bench]"]["state"] == "ok"


def test_the_extras_are_those_of_the_package() -> None:
    tomllib = pytest.importorskip("tomllib")
    file = Path(__file__).parents[2] / "pyproject.toml"
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    declared = project["optional-dependencies"]
    for name, packages in extras.EXTRAS.items():
        assert [Requirement(r).name for r in declared[name]] == list(packages), name
    assert "opforge[check,bench]" in declared["dev"]
    needed = {Requirement(r).name for r in project["dependencies"]}
    assert needed.isdisjoint(p for packages in extras.EXTRAS.values() for p in packages)


def test_every_import_is_of_a_package_that_is_declared() -> None:
    imported: set[str] = set()
    for file in Path(opforge.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(str(node.module).partition(".")[0])
    known = {"torch", "typer", "rich", "platformdirs", "filelock", "packaging", "ninja"}
    known |= {"jinja2", "sympy", "tomli"}
    known |= {"opforge", "pytest", "cuda", *every_module()}
    assert imported - sys.stdlib_module_names <= known
