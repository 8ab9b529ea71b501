# SPDX-License-Identifier: Apache-2.0
"""The libraries of the built-in ops: one binary for every torch from 2.10 on."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
from helpers import foreign_torch_symbols, python, undefined_symbols
from op_cases import OPS

from opforge import discover
from opforge.build import compile
from opforge.build.plan import plan, plan_all
from opforge.build.targets import has_sources
from opforge.ship import audit

# What is composed of other ops has no library of its own.
BUILT = [name for name in OPS if discover.find(name).composed is None]


def check_library(name: str, target: str) -> None:
    for library in compile.build(plan_all(discover.find(name), target, "9.0")):
        assert foreign_torch_symbols(library.path) == set()
        used = undefined_symbols(library.path)
        assert used & {"aoti_torch_empty_strided", "aoti_torch_library_init_impl"}
        if target != "sim":  # which has all parts of an op in one library
            assert library.manifest["size"] < 4 << 20, "a library stays within a few MB"
            verdict = audit.judge([library.path])
            assert verdict.is_as_wide_as_torch, verdict.why


# A simulated library is made of the same binding and launcher as the one for GPUs.
@pytest.mark.parametrize(
    ("target", "name"),
    [(t, n) for t in ("cpu", "sim") for n in BUILT if has_sources(discover.find(n), t)],
)
def test_libraries_use_nothing_but_the_shim_of_torch_2_10(target: str, name: str) -> None:
    check_library(name, target)


# nvcc takes up to a minute for each. By day it compiles a small kernel, in test_build.py.
@pytest.mark.nightly
@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc")
@pytest.mark.parametrize("name", BUILT)
def test_shipped_libraries_use_nothing_but_the_shim_of_torch_2_10(name: str) -> None:
    check_library(name, "cuda")


def test_a_cached_load_does_little_more_than_importing_torch() -> None:
    """Importing opforge, registering an op, finding its library, loading it and calling it.

    It takes about 50 ms on a calm machine. What is counted holds on a busy one, too.
    """
    code = """
        import json, sys, torch
        x = torch.ones(4)
        opened, started, before = [], [], set(sys.modules)

        def note(event, arguments):
            if event == "open":
                opened.append(str(arguments[0]))
            if event in ("subprocess.Popen", "os.posix_spawn", "os.system", "os.fork"):
                started.append(event)

        sys.addaudithook(note)
        import opforge
        opforge.relu(x)
        imported = sorted(set(sys.modules) - before)
        print(json.dumps({"opened": opened, "started": started, "imported": imported}))
    """
    compile.build([plan(discover.find("relu"), "cpu")])
    done = json.loads(python(code).stdout)
    assert done["started"] == []
    assert "opforge.build.compile" not in done["imported"]
    packages = {name.partition(".")[0] for name in done["imported"]} - set(sys.stdlib_module_names)
    assert packages <= {"opforge", "packaging", "platformdirs"}
    assert len(done["opened"]) <= 100, done["opened"]
