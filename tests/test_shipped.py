# SPDX-License-Identifier: Apache-2.0
"""The libraries of the built-in ops: one binary for every torch from 2.10 on."""

from __future__ import annotations

import shutil

import pytest
from helpers import foreign_torch_symbols, undefined_symbols

from opforge import discover
from opforge.build import cache, compile
from opforge.build.plan import plan


def built(target: str, archs: str | None = None) -> list[cache.Library]:
    ops = [discover.find(name) for name in discover.builtin_names()]
    return compile.build([plan(op, target, archs) for op in ops])


@pytest.mark.timeout(900)
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
