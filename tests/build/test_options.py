# SPDX-License-Identifier: Apache-2.0
"""What a record can say about its build: headers, flags, libraries, architectures, units."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch
from helpers import CPU_CPP, PATIENCE, planned, write_op

import opforge
from opforge import sim, testing
from opforge.build import arch, compile, in_use
from opforge.check import results
from opforge.errors import NotSimulated, RecordError, ToolchainError

pytestmark = pytest.mark.usefixtures("cache_dir")

RECORD = """\
    import torch
    from opforge import Build, Op, PackageHeaders

    op = Op(
        schema="{name}(Tensor x) -> Tensor y",
        reference=lambda x: 2 * x,
        dtypes=(torch.float32, torch.float64),
        build=Build({build}),
    )
"""


def write(folder: Path, name: str, build: str, cpp: str | None = "kernel", cu: str | None = None):
    if cpp == "kernel":
        cpp = CPU_CPP.format(name=name, factor="FACTOR")
    return write_op(folder, op_py=RECORD.format(name=name, build=build), cpp=cpp, cu=cu)


def test_flags_libraries_and_a_folder_of_headers(tmp_path):
    build = 'include=["../headers"], flags={"cpu": ["-DSIGN=1"]}, libraries={"cpu": ["-lm"]}'
    folder = write(tmp_path / "op", "with_headers", build)
    (tmp_path / "headers").mkdir()
    header = tmp_path / "headers" / "factor.h"
    header.write_text("#pragma once\n#define FACTOR (2 * SIGN)\n")
    source = folder / "cpu.cpp"
    source.write_text("#include <factor.h>\n" + source.read_text())
    assert opforge.load(folder)(torch.ones(1)) == 2
    before = planned(folder)
    assert "-lm" in before.link
    header.write_text("#pragma once\n#define FACTOR 2\n")
    assert planned(folder).key != before.key


def test_units_in_subfolders(tmp_path):
    folder = write(tmp_path / "op", "in_units", "", cpp='#include "units/factor.h"\n')
    source = CPU_CPP.format(name="in_units", factor="factor()")
    (folder / "cpu.cpp").write_text('#include "units/factor.h"\n' + source)
    (folder / "units").mkdir()
    (folder / "units" / "factor.h").write_text("#pragma once\nint factor();\n")
    (folder / "units" / "factor.cpp").write_text("int factor() { return 2; }\n")
    assert [p.name for p in planned(folder).sources] == ["cpu.cpp", "factor.cpp"]
    assert opforge.load(folder)(torch.ones(1)) == 2


def test_headers_of_a_package(tmp_path):
    build = 'include=[PackageHeaders("torch", "torch/include")]'
    folder = write(tmp_path / "op", "with_package", build)
    plan = planned(folder)
    assert plan.ingredients["package torch"] == metadata.version("torch")
    at = plan.compile.index("-isystem")
    assert plan.compile[at + 1].endswith("torch/include")


def test_a_package_that_is_not_installed(tmp_path):
    build = 'include=[PackageHeaders("no-such-headers", "include")]'
    folder = write(tmp_path / "op", "without_package", build)
    said = r"without_package needs the headers of no-such-headers.*pip install no-such-headers"
    with pytest.raises(ToolchainError, match=said):
        planned(folder)


def test_a_folder_that_is_not_there(tmp_path):
    folder = write(tmp_path / "op", "without_folder", 'include=["headers"]')
    with pytest.raises(RecordError, match=r"without_folder includes .*headers, which is not a"):
        planned(folder)


@pytest.mark.parametrize("what", ["flags", "libraries"])
def test_an_unknown_target(what):
    with pytest.raises(RecordError, match=f"Build has {what} for 'gpu'; targets are cpu, cuda and"):
        opforge.Build(**{what: {"gpu": ["-g"]}})


def test_a_string_where_a_list_is_meant():
    with pytest.raises(RecordError, match="Build has '-O3' for flags of cpu; it takes a list of"):
        opforge.Build(flags={"cpu": "-O3"})


def test_what_lies_below_an_op_and_is_not_of_it(tmp_path):
    folder = write(tmp_path / "op", "with_neighbours", "")
    for name in ("tests", ".hidden", "prebuilt", "other_op", "environment"):
        (folder / name).mkdir()
        (folder / name / "more.cpp").write_text("#error not of the op\n")
    (folder / "other_op" / "op.py").write_text("")
    (folder / "environment" / "pyvenv.cfg").write_text("")
    assert [p.name for p in planned(folder).sources] == ["cpu.cpp"]


@pytest.mark.nightly
def test_prune_keeps_an_op_whose_first_source_is_in_a_subfolder(tmp_path):
    folder = write(tmp_path / "op", "first_below", "", cpp=None)
    (folder / "a").mkdir()
    (folder / "a" / "cpu.cpp").write_text(CPU_CPP.format(name="first_below", factor="2"))
    (library,) = compile.build([planned(folder)])
    assert library.folder.name in in_use.entries()


def test_architectures_that_a_kernel_needs():
    chosen = arch.with_needed(("8.0", "9.0", "9.0+PTX"), ["9.0a"])
    assert chosen == ("8.0", "9.0a")
    assert [f for f in arch.nvcc_flags(chosen) if "90" in f and "90a" not in f] == []
    assert arch.with_needed(("8.0",), ["9.0a"]) == ("8.0",)
    assert arch.with_needed(("9.0",), []) == ("9.0",)


NOT_SIMULATED = 'not_simulated="its matrix instructions run on a GPU only"'
KERNEL = """\
#include <opforge/host.h>
OPFORGE_IMPL(tensor_cores, nothing)
"""


@pytest.mark.sim
def test_an_op_that_is_not_simulated_says_so(tmp_path):
    cpp = CPU_CPP.format(name="tensor_cores", factor="2")
    folder = write(tmp_path / "op", "tensor_cores", NOT_SIMULATED, cpp=cpp, cu=KERNEL)
    with pytest.raises(NotSimulated, match="not simulated: its matrix instructions run on a GPU"):
        sim.run(str(folder), torch.ones(3))


@pytest.mark.nightly
@pytest.mark.sim
def test_a_check_goes_on_past_an_op_that_is_not_simulated(tmp_path):
    cpp = CPU_CPP.format(name="tensor_cores", factor="2")
    folder = write(tmp_path / "op", "tensor_cores", NOT_SIMULATED, cpp=cpp, cu=KERNEL)
    report = testing.check(folder, on=["cpu", "sim"], only=["inputs-unchanged"])
    outcomes = {r.place: (r.outcome, r.text) for r in report.ops[0].results}
    assert outcomes["cpu"][0] == results.PASSED
    assert outcomes["sim"] == (
        results.NOT_RUN,
        "not simulated: its matrix instructions run on a GPU only",
    )


@pytest.mark.nightly
@pytest.mark.sim
def test_a_simulation_of_several_ops_goes_on_past_one_that_is_not_simulated(tmp_path):
    cpp = CPU_CPP.format(name="tensor_cores", factor="2")
    folder = write(tmp_path / "op", "tensor_cores", NOT_SIMULATED, cpp=cpp, cu=KERNEL)
    command = [sys.executable, "-m", "opforge", "sim", str(folder), "relu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert "tensor_cores: not simulated: its matrix instructions" in done.stdout
    assert "relu: " in done.stdout
    assert done.returncode == 0
