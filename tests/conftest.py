# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from bench_runs import bench  # noqa: F401  a fixture
from helpers import REAL_CXX, write_op
from op_cases import TWINS

from opforge import sim
from opforge.build import cache, compile
from opforge.settings import VARIABLES

# Where a machine has AMX but a process may not use it, oneDNN's 16-bit products end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="also run what is marked nightly")


@pytest.hookimpl(tryfirst=True)  # markers are there before -m chooses by them
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        given = [p for p in _parameters(item) if isinstance(p, str)]
        if "sim" in given:
            item.add_marker(pytest.mark.sim)
            # By day, the rows of the check and the golden outputs simulate the built-in ops.
            if item.path.parent.name == "ops" and item.path.name != "test_golden.py":
                item.add_marker(pytest.mark.nightly)
        if item.get_closest_marker("sim") and not TWINS.keys().isdisjoint(given):
            item.add_marker(pytest.mark.nightly)
    if not config.getoption("--nightly"):
        left_out = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


def _parameters(item: pytest.Item) -> list[object]:
    called = getattr(item, "callspec", None)
    return list(called.params.values()) if called else []


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device of a test's tensors; for "sim" the CPU, with the CUDA kernels simulated."""
    if request.param != "sim":
        yield request.param
        return
    with sim.active():
        yield "cpu"


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own; other settings of whoever runs the tests do not count."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    place = tmp_path / "cache"
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(place))
    return place


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the trial load of a fresh library, which imports torch for two seconds."""
    monkeypatch.setattr(compile, "_why_untried", lambda plan: "not tried: a test")


@pytest.fixture(scope="session")
def kernel_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An op folder with a working CPU kernel."""
    return write_op(tmp_path_factory.mktemp("ops") / "twofold", name="twofold", cpp="kernel")


@pytest.fixture(scope="session")
def built_cache(kernel_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds ``kernel_folder``, built for real, once."""
    from helpers import python

    place = tmp_path_factory.mktemp("built") / "cache"
    code = """
        import sys, torch, opforge
        assert opforge.load(sys.argv[1])(torch.ones(3)).tolist() == [2, 2, 2]
    """
    python(code, kernel_folder, environment={"OPFORGE_CACHE_DIR": str(place), "CXX": REAL_CXX})
    return place


@pytest.fixture
def built(built_cache: Path, monkeypatch: pytest.MonkeyPatch) -> cache.Library:
    """The real library, with its cache as the one in use. Do not change it: it is shared."""
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(built_cache))
    monkeypatch.setenv("CXX", REAL_CXX)
    (library,) = cache.entries()
    return library


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts small file systems of a test's own: ``mounted("size=64k")``."""
    places: list[Path] = []

    def mount(options: str, name: str = "disk") -> Path:
        place = tmp_path / name
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip("needs the right to mount a tmpfs")
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", "-l", str(place)], check=True)
