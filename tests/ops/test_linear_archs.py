# SPDX-License-Identifier: Apache-2.0
"""Linear layers as compiled for Hopper and for other GPUs: each has kernels of its own."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from opforge import discover
from opforge.build import compile
from opforge.build.plan import INCLUDE_DIR, plan_all

pytestmark = pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc")
# Instructions of a warp, and of a warp group.
MMA, WGMMA = "mma.sync", "wgmma.mma_async"
FAMILY = ["linear", "gated_linear", "linear_dact"]


def instructions(unit, arch):
    """Which of them a unit has where it is compiled for a GPU."""
    nvcc = ["nvcc", "-std=c++20", "--ptx", f"-arch=compute_{arch}", f"-I{INCLUDE_DIR}"]
    done = subprocess.run([*nvcc, unit, "-o", "-"], check=True, capture_output=True, text=True)
    return {name for name in (MMA, WGMMA) if name in done.stdout}


def units(name):
    return sorted((discover.find(name).folder / "units").glob("*.cu"))


def expected(unit, arch):
    if unit.stem.startswith("ampere"):
        return set() if arch == "90a" else {MMA}
    return {WGMMA} if arch == "90a" else set()


def test_a_unit_for_gpus_before_hopper():
    (unit,) = (u for u in units("linear") if u.stem == "ampere_tf32")
    assert instructions(unit, "80") == {MMA}


@pytest.mark.nightly
@pytest.mark.parametrize("arch", ["80", "89", "90a", "100"])
@pytest.mark.parametrize("name", FAMILY)
def test_every_unit_has_code_for_its_gpus_alone(name, arch):
    for unit in units(name):
        assert instructions(unit, arch) == expected(unit, arch), unit


@pytest.mark.nightly
@pytest.mark.parametrize("arch", ["8.0", "9.0"])
@pytest.mark.parametrize("name", FAMILY)
def test_every_part_is_built(name, arch):
    plans = plan_all(discover.find(name), "cuda", arch)
    assert {p.archs for p in plans} == {("8.0",) if arch == "8.0" else ("9.0a",)}
    assert len(compile.build(plans)) == len(plans)
