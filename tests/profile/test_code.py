# SPDX-License-Identifier: Apache-2.0
"""What opforge profile reads from compiled code, and with which programs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from opforge import discover
from opforge.build import cache, load, plan, toolchain, tools
from opforge.build.generated import HEADER_NAME
from opforge.errors import ProfileError, ToolchainError
from opforge.profile import compiled, sass

SAMPLES = Path(__file__).parent / "samples"
USAGE, SASS, PTXAS = ((SAMPLES / f"{n}.txt").read_text() for n in ("usage", "sass", "ptxas"))
NARROW = "_ZN7opforge8row_sumsI13__nv_bfloat16jEEvT_T0_"
WIDE = "_ZN7opforge8row_sumsI13__nv_bfloat16mEEvT_T0_"
FLOAT = "_ZN7opforge8row_sumsIfjEEvT_T0_"


def test_cuobjdump_tells_registers_stack_and_shared_memory() -> None:
    codes = sass.resources(USAGE)
    assert list(codes) == [NARROW, WIDE, FLOAT, "plain"]
    assert (codes[WIDE].registers, codes[WIDE].stack, codes[WIDE].shared) == (40, 56, 1152)
    assert (codes["plain"].registers, codes["plain"].stack) == (8, 0)


def test_ptxas_tells_spills_of_the_kernel_and_not_of_what_it_calls() -> None:
    codes = sass.ptxas(PTXAS)
    assert list(codes) == [WIDE, "plain"]
    assert (codes[WIDE].registers, codes[WIDE].stack, codes[WIDE].shared) == (40, 56, 1152)
    assert codes[WIDE].spills == 24 + 40
    assert codes["plain"] == sass.Code("plain", registers=8, spills=0)


@pytest.mark.parametrize("style", ["cuobjdump", "nvdisasm"])
def test_instructions_are_counted_by_kind_and_width(style: str) -> None:
    text = SASS
    if style == "nvdisasm":
        for name in (NARROW, WIDE, "plain"):
            text = text.replace(f"\t\tFunction : {name}", f".text.{name}:")
    codes: dict[str, sass.Code] = {}
    assert sass.count(text, codes)
    none = {"local": 0, "barrier": 0, "matrix": 0}
    loads = {"load 16": 1, "load 2": 1, "load 4": 1, "store 8": 1}
    assert codes[NARROW].counts == {**none, "barrier": 1, **loads}
    assert codes[WIDE].counts == {**none, "local": 2, "matrix": 2, "load 16": 1}
    assert codes["plain"].counts == none


def test_a_listing_without_code_is_noticed() -> None:
    assert not sass.count("\nFatbin elf code:\n================\narch = sm_90\n", {})


def test_instances_of_a_template_are_one_kernel() -> None:
    codes = sass.resources(USAGE)
    sass.count(SASS, codes)
    rows, plain = sass.merge(list(codes.values()))
    assert (rows.name, rows.instances, rows.registers) == ("row_sums", 3, 96)
    assert (rows.stack_bytes, rows.with_stack, rows.load_width) == (56, 1, 16)
    assert rows.instructions["load 16"] == 2
    assert rows.spill_bytes is None  # cuobjdump does not tell
    assert [k.spill_bytes for k in sass.merge(list(sass.ptxas(PTXAS).values()))] == [64, 0]
    assert (plain.name, plain.load_width, plain.instructions["local"]) == ("plain", None, 0)


def test_names_are_demangled() -> None:
    text = "void opforge::row_sums<__nv_bfloat16, unsigned int>(__nv_bfloat16, unsigned int)"
    assert sass.demangle(NARROW) == text
    assert sass.demangle("plain") == "plain"


def test_kernels_of_other_dtypes_are_left_out() -> None:
    found = compiled.Compiled("9.0", "a test", list(sass.resources(USAGE).values()))
    assert [c.name for c in found.of(torch.bfloat16)] == [NARROW, WIDE, "plain"]
    assert [c.name for c in found.of(torch.float32)] == [FLOAT, "plain"]
    assert len(found.of(torch.float64)) == 4  # no name tells: better all than none
    assert len(found.of(torch.int32)) == 4


def stub(path: Path, text: str) -> str:
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """A library that is ready, and the manifest that tells what it was built for."""
    manifest: dict[str, list[str]] = {"archs": ["8.0", "9.0", "9.0+PTX"]}
    ready = cache.Library(tmp_path / "relu-cuda.so", manifest)
    monkeypatch.setattr(load, "find_ready", lambda op, target, part: ready)
    return manifest


def test_the_library_is_read_with_cuobjdump(
    tmp_path: Path, library: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = stub(
        tmp_path / "cuobjdump",
        "import sys\n"
        f"given, log = sys.argv[1:], open({str(tmp_path / 'log')!r}, 'a')\n"
        "print(*given, file=log)\n"
        f"print({USAGE!r} if '--dump-resource-usage' in given else {SASS!r})\n",
    )
    monkeypatch.setattr(tools, "find", {"cuobjdump": program}.get)
    found = compiled.inspect(discover.find("relu"))
    assert (found.arch, found.source, found.missing) == ("9.0", "cuobjdump", "")
    assert [c.counts["local"] for c in found.codes] == [0, 2, 0, 0]
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 2
    assert all("--gpu-architecture sm_90 " in line for line in lines)
    library["archs"] = ["9.0+PTX"]
    with pytest.raises(ProfileError, match="PTX only"):
        compiled.inspect(discover.find("relu"))


def test_a_cuobjdump_without_nvdisasm_is_half_an_answer(
    tmp_path: Path, library: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = stub(tmp_path / "cuobjdump", f"print({USAGE!r})")
    monkeypatch.setattr(tools, "find", {"cuobjdump": program}.get)
    found = compiled.inspect(discover.find("relu"))
    assert len(found.codes) == 4
    assert "pip install nvidia-cuda-nvdisasm" in found.missing
    stub(tmp_path / "cuobjdump", "import sys; sys.exit('no such file')")
    with pytest.raises(ProfileError, match="cuobjdump failed: no such file"):
        compiled.inspect(discover.find("relu"))


def test_without_cuobjdump_the_compiler_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvcc = stub(
        tmp_path / "nvcc",
        "import pathlib, sys\n"
        "assert '-cubin' in sys.argv and '-c' not in sys.argv\n"
        f"assert pathlib.Path({HEADER_NAME!r}).read_text() == 'the signatures'\n"
        f"print({PTXAS!r}, file=sys.stderr)\n",
    )
    op = discover.find("relu")
    assert op.folder is not None
    planned = plan.Plan(
        "relu",
        "cuda",
        (op.folder / "cuda.cu",),
        (nvcc, "-c"),
        (),
        "the signatures",
        ("9.0",),
        (),
        0,
        {},
    )
    monkeypatch.setattr(compiled, "plan", lambda *args: planned)
    monkeypatch.setattr(tools, "find", lambda name: None)
    found = compiled.inspect(op)
    assert (found.source, [c.registers for c in found.codes]) == ("ptxas", [40, 8])
    assert "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm" in found.missing
    disassembler = stub(tmp_path / "nvdisasm", f"print({SASS!r})")
    monkeypatch.setattr(tools, "find", {"nvdisasm": disassembler}.get)
    found = compiled.inspect(op)
    assert found.missing == ""
    assert [c.counts["local"] for c in found.codes if c.name == WIDE] == [2]


def test_programs_are_found_on_the_path_in_the_toolkit_and_in_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_toolkit() -> None:
        raise ToolchainError("none")

    monkeypatch.setattr(toolchain, "find_cuda", no_toolkit)
    monkeypatch.setattr(toolchain, "pip_program", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # triton has one
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    assert tools.find("cuobjdump") is None
    places = {p: tmp_path / p / "cuobjdump" for p in ("package", "home/bin", "path")}
    for place in places.values():
        place.parent.mkdir(parents=True)
    # It knows no others: asking for them is an error.
    monkeypatch.setattr(toolchain, "pip_program", {"cuobjdump": str(places["package"])}.__getitem__)
    found = stub(places["package"], "")
    assert tools.find("cuobjdump") == found
    assert tools.find("ncu") is None  # not in a package
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    at_home = stub(places["home/bin"], "")
    assert tools.find("cuobjdump") == at_home
    on_path = stub(places["path"], "")
    assert tools.find("cuobjdump") == on_path
    places["path"].chmod(0o644)
    assert tools.find("cuobjdump") == at_home
    places["home/bin"].chmod(0o644)
    assert tools.find("cuobjdump") == found
