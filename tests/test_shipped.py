# SPDX-License-Identifier: Apache-2.0
"""The libraries of the built-in ops: one binary for every torch from 2.10 on."""

from __future__ import annotations

import shutil

import pytest
from helpers import foreign_torch_symbols, python, undefined_symbols

from opforge import discover
from opforge.build import cache, compile
from opforge.build.plan import plan


def built(target: str, archs: str | None = None) -> list[cache.Library]:
    ops = [discover.find(name) for name in discover.builtin_names()]
    return compile.build([plan(op, target, archs) for op in ops])


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_shipped_libraries_use_nothing_but_the_shim_of_torch_2_10(target: str) -> None:
    if target == "cuda" and not shutil.which("nvcc"):
        pytest.skip("needs nvcc")
    libraries = built(target, "9.0")
    assert len(libraries) == len(discover.builtin_names())
    for library in libraries:
        assert foreign_torch_symbols(library.path) == set(), library.path.name
        assert "aoti_torch_empty_strided" in undefined_symbols(library.path)
        assert library.manifest["size"] < 4 << 20, "a library stays within a few MB"


def test_a_cached_load_adds_at_most_50_ms_to_importing_torch() -> None:
    """Importing opforge, registering an op, finding its library, loading it and calling it."""
    code = """
        import time, torch
        x = torch.ones(4)
        started = time.perf_counter()
        import opforge
        opforge.relu(x)
        print(time.perf_counter() - started)
    """
    built("cpu")
    environment = {"PYTHONDONTWRITEBYTECODE": ""}  # a normal installation has its bytecode
    times = [float(python(code, environment=environment).stdout) for _ in range(6)]
    assert min(times[1:]) <= 0.050, times
