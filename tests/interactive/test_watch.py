# SPDX-License-Identifier: Apache-2.0
"""``opforge.load(path, watch=True)`` follows the files of the folder."""

from __future__ import annotations

import inspect
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers import stub_cxx, write_op

import opforge
from opforge import discover
from opforge.errors import BuildError, RecordError

PUBLIC = """\
import torch
from opforge import Op

op = Op(schema="{name}(Tensor x) -> Tensor y", reference=lambda x: {factor} * x)


def {name}(x: torch.Tensor) -> torch.Tensor:
    \"\"\"Times {factor}.\"\"\"
    return op(x)
"""
X = torch.ones(2)


def write(folder, factor, name="watched"):
    text = PUBLIC.format(name=name, factor=factor)
    return write_op(folder, op_py=text, cpp=None)


def test_a_call_runs_the_newest_version_and_says_nothing(tmp_path, capfd):
    watched = opforge.load(write(tmp_path, 2), watch=True)
    plain = opforge.load(tmp_path)
    assert watched(X).tolist() == [2, 2]
    assert (inspect.getdoc(watched), watched.__name__) == ("Times 2.", "watched")
    assert str(inspect.signature(watched)) == "(x: torch.Tensor) -> torch.Tensor"
    write(tmp_path, 3)
    assert watched(X).tolist() == [3, 3]
    assert inspect.getdoc(watched) == "Times 3."
    assert plain(X).tolist() == [2, 2]
    assert discover.record_of(watched) is discover.record_of(opforge.load(tmp_path))
    write(tmp_path, 2)
    assert watched(X).tolist() == [2, 2]
    assert capfd.readouterr() == ("", "")


def test_without_a_change_nothing_is_read(tmp_path, monkeypatch):
    watched = opforge.load(write(tmp_path, 2, "unchanged"), watch=True)
    watched(X)
    monkeypatch.setattr(discover, "load_folder", None)
    assert watched(X).tolist() == [2, 2]


def test_a_new_file_is_a_change(tmp_path):
    write(tmp_path, 2, "grows")
    watched = opforge.load(tmp_path, watch=True)
    text = (tmp_path / "op.py").read_text().replace("import torch\n", "import torch\n", 1)
    (tmp_path / "op.py").write_text(f"try:\n    from .more import factor\nexcept ImportError:\n    factor = 2\n{text}".replace("2 * x", "factor * x"))  # fmt: skip  # noqa: E501
    assert watched(X).tolist() == [2, 2]
    (tmp_path / "more.py").write_text("factor = 4\n")
    assert watched(X).tolist() == [4, 4]


def test_a_change_that_cannot_be_loaded_raises_until_the_next(tmp_path):
    watched = opforge.load(write(tmp_path, 2, "broken_once"), watch=True)
    (tmp_path / "op.py").write_text("op =")
    for _ in range(2):
        with pytest.raises(RecordError, match=r"op\.py cannot be loaded: SyntaxError"):
            watched(X)
    write(tmp_path, 5, "broken_once")
    assert watched(X).tolist() == [5, 5]
    (tmp_path / "op.py").write_text("op =")
    with pytest.raises(RecordError, match="cannot be loaded"):
        opforge.load(tmp_path, watch=True)


def test_a_source_that_does_not_compile_is_tried_once_per_change(
    tmp_path, cache_dir, monkeypatch, untried, capfd
):
    broken = 'case "$all" in */cpu.cpp*) echo "cpu.cpp:8:2: error: no such name"; exit 1;; esac'
    compiler = stub_cxx(tmp_path / "broken", on_compile=broken)
    monkeypatch.setenv("CXX", str(compiler.path))
    folder = write_op(tmp_path / "op", name="rebuilt", factor=2)
    watched = opforge.load(folder, watch=True)
    for _ in range(2):
        with pytest.raises(BuildError, match=r"cpu\.cpp:8:2: error: no such name"):
            watched(X)
    assert compiler.compiles == 1
    monkeypatch.setenv("CXX", str(stub_cxx(tmp_path / "right").path))
    write_op(folder, name="rebuilt", factor=6)
    assert watched(X).tolist() == [6, 6]  # the stub's library is empty: the reference runs
    assert "opforge: built rebuilt (cpu) in" in capfd.readouterr().err


def test_threads_wait_for_one_of_them_to_load_the_new_version(tmp_path, monkeypatch):
    watched = opforge.load(write(tmp_path, 2, "shared"), watch=True)
    watched(X)
    write(tmp_path, 3, "shared")
    load_folder, loads = discover.load_folder, []

    def slowly(*args, **named):
        loads.append(args)
        time.sleep(0.3)
        return load_folder(*args, **named)

    monkeypatch.setattr(discover, "load_folder", slowly)
    start = threading.Barrier(8)

    def call(_):
        start.wait()
        return watched(X).tolist()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(call, range(8))) == [[3, 3]] * 8
    assert len(loads) == 1


def test_compiled_code_keeps_the_version_that_was_traced(tmp_path):
    watched = opforge.load(write(tmp_path, 2, "traced"), watch=True)
    compiled = torch.compile(lambda x: watched(x) + 1, fullgraph=True, backend="aot_eager")
    assert compiled(X).tolist() == [3, 3]
    write(tmp_path, 3, "traced")
    assert compiled(X).tolist() == [3, 3]
    assert watched(X).tolist() == [3, 3]
