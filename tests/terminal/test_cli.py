# SPDX-License-Identifier: Apache-2.0
"""The commands, run as a user runs them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import python, stub_cxx, write_op
from typer.testing import CliRunner

from opforge import cli, discover
from opforge.build import cache
from opforge.errors import RecordError


def run(*arguments: object) -> str:
    """What a command prints; it must succeed."""
    result = CliRunner().invoke(cli.app, [str(a) for a in arguments], terminal_width=200)
    assert result.exit_code == 0, result.output
    return result.output


def test_list_names_every_op_with_schema_kernels_and_dtypes() -> None:
    text = run("list")
    for name in discover.builtin_names():
        assert f"{name}(Tensor" in text
    assert "cpu, cuda" in text
    assert "float32, float16, bfloat16, float64" in text


def test_list_takes_a_folder(tmp_path: Path) -> None:
    folder = write_op(tmp_path / "op", name="listed", cpp=None)
    assert "reference only" in run("list", folder)


def test_doctor_reports_toolchains_cache_and_every_op(cache_dir: Path) -> None:
    findings = json.loads(run("doctor", "--json"))
    found = {f["what"]: f for f in findings}
    assert found["torch"]["state"] == "ok"
    assert found["C++ compiler"]["state"] == "ok"
    assert str(cache_dir) in found["cache"]["found"]
    assert found["relu (cpu)"]["found"] == "not built yet"
    assert found["relu (cpu)"]["remedy"] == "opforge build relu --cpu"
    assert "C++ compiler" in run("doctor")
    (simulator,) = (f for f in findings if f["what"] == "simulator")
    assert simulator["state"] == "ok"


def test_doctor_has_a_remedy_for_a_missing_compiler(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    found = {f["what"]: f for f in json.loads(run("doctor", "--json"))}
    assert "install g++" in found["C++ compiler"]["remedy"]
    assert found["CUDA toolkit"]["remedy"] == "pip install 'opforge[cuda]'"


def test_doctor_fails_where_the_cache_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(place))
    result = CliRunner().invoke(cli.app, ["doctor"])
    assert result.exit_code == 1
    assert "writable by others" in " ".join(result.output.split())


def test_an_expected_error_is_one_line_and_exit_code_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "opforge", "build", "no_such_op"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("opforge: 'no_such_op' is neither a built-in op (")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--wheel", "--cpp"], "--wheel, --hf and --cpp write different things; choose one"),
        (["--force"], "--force only says what --hf and --cpp may replace; leave it out"),
        (["--out", __file__], "test_cli.py is a file; it takes the folder for the libraries"),
    ],
)
def test_options_of_build_that_do_not_fit(options: list[str], told: str) -> None:
    result = CliRunner().invoke(cli.app, ["build", "relu", *options])
    assert isinstance(result.exception, RecordError)
    assert told in str(result.exception)


def test_build_into_a_folder_that_the_loader_takes(tmp_path: Path, cache_dir: Path) -> None:
    folder = write_op(tmp_path / "op", name="shipped", cpp="kernel")
    text = run("build", folder, "--cpu", "--out", tmp_path / "out")
    assert "shipped-cpu.so" in text
    code = """
        import sys, torch, opforge
        from opforge.build import load
        function = opforge.load(sys.argv[1])
        assert function(torch.ones(2)).tolist() == [2, 2]
        print(load.loaded_path(function, "cpu"))
    """
    environment = {"OPFORGE_PREBUILT": str(tmp_path / "out"), "OPFORGE_JIT": "0"}
    environment["OPFORGE_CACHE_DIR"] = str(tmp_path / "unused")
    assert str(tmp_path / "out") in python(code, folder, environment=environment).stdout


def test_cache_ls_explain_and_prune(tmp_path: Path, cache_dir: Path, untried: None) -> None:
    folder = write_op(tmp_path / "op", name="kept_in_cache", cpp="kernel")
    assert "never built here" in run("cache", "explain", folder)
    run("build", folder, "--cpu")
    assert "kept_in_cache" in run("cache", "ls")
    assert "cached as kept_in_cache-cpu-" in run("cache", "explain", folder)
    source = folder / "cpu.cpp"
    source.write_text(source.read_text() + "// changed\n")
    command = [sys.executable, "-m", "opforge", "cache", "explain", str(folder)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "would be built again" in text
    assert "source cpu.cpp changed" in text
    assert "flags" not in text
    assert "removed 1 entries" in run("cache", "prune", "--all")
    assert cache.entries() == []


@pytest.mark.nightly
def test_prune_keeps_what_op_folders_would_load_now(
    tmp_path: Path, cache_dir: Path, untried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(stub_cxx(tmp_path / "bin").path))

    def names() -> list[str]:
        return sorted(e.manifest["op"] for e in cache.entries())

    folders = {
        name: write_op(tmp_path / name, name=name, cpp="kernel")
        for name in ("kept_a", "kept_b", "changed", "deleted", "half_written")
    }
    twin = write_op(tmp_path / "twin", name="kept_a", cpp="kernel", factor=3)
    run("build", *folders.values(), twin, "--cpu")
    source = folders["changed"] / "cpu.cpp"
    source.write_text(source.read_text() + "// changed\n")
    (folders["half_written"] / "op.py").write_text("import torch\nop = Op(")
    shutil.rmtree(folders["deleted"])
    assert "removed 0 entries" in run("cache", "prune", "--days", "1")
    assert len(names()) == 6
    assert "removed 2 entries" in run("cache", "prune")
    assert names() == ["half_written", "kept_a", "kept_a", "kept_b"]
    assert "removed 0 entries" in run("cache", "prune")
    assert "removed 4 entries" in run("cache", "prune", "--all")


def test_what_is_shipped_does_not_say_where_it_was_built(
    tmp_path: Path, cache_dir: Path, untried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_op(tmp_path / "secret_place", name="shipped_far", cpp="kernel")
    monkeypatch.setenv("CXX", str(stub_cxx(tmp_path / "bin").path))
    run("build", folder, "--cpu", "--out", tmp_path / "out")
    assert "secret_place" not in (tmp_path / "out" / "shipped_far-cpu.json").read_text()
    (library,) = cache.entries()
    assert library.manifest["source_folder"] == str(folder)
