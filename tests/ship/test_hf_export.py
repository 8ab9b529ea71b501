# SPDX-License-Identifier: Apache-2.0
"""What an export writes and what it refuses. Stub compilers make its libraries, which are empty."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch
from helpers import python, stub_cxx, stub_nvcc, write_op
from kernels import get_local_kernel
from kernels.backends import CPU, CUDA
from kernels.variants import _resolve_variant_for_system, get_variants_local
from packaging.version import Version
from typer.testing import CliRunner

from opforge import cli, discover, history
from opforge.build.targets import has_sources
from opforge.errors import BuildError, OpforgeError, ToolchainError
from opforge.op import Op
from opforge.ship import hf
from opforge.ship.hf import export

TRY = hf._try_importing
TIMES = """
    import torch
    from opforge import Op
    op = Op(schema="times(Tensor x) -> Tensor y", reference=lambda x: {factor} * x)
"""


@pytest.fixture(autouse=True)
def stubs(tmp_path: Path, cache_dir: Path, untried: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(stub_cxx(tmp_path / "bin").path))
    stub_nvcc(tmp_path / "cuda")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setattr(hf, "_try_importing", lambda variants: None)  # it imports torch


def test_a_kernel_that_needs_more_than_is_in_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf, "_try_importing", TRY)
    line = "    open(__file__.replace('op.py', 'table.txt'))"
    folder = write_op(tmp_path / "op", op_py=line + TIMES.replace("{factor}", "2"))
    (folder / "table.txt").touch()
    text = "built but cannot be imported without opforge: FileNotFoundError: .*table.txt"
    refused([discover.load_folder(folder).op], tmp_path / "times", text)


def record(folder: Path, factor: int = 2, **sources: str | None) -> Op:
    write_op(folder, op_py=TIMES.replace("{factor}", str(factor)), **sources)  # type: ignore[arg-type]
    return discover.load_folder(folder).op


def run(*arguments: object) -> str:
    result = CliRunner().invoke(cli.app, [str(a) for a in arguments], terminal_width=200)
    assert result.exit_code == 0, result.output
    return result.output


def metadata(variant: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((variant / "metadata.json").read_text())
    return found


def test_there_is_a_variant_for_the_cpu_and_one_for_cuda(tmp_path: Path) -> None:
    out = tmp_path / "out" / "Both_Ways"
    assert str(out) in run("build", "relu", "swiglu", "--hf", "--arch", "8.0 9.0", "--out", out)
    cpu, cuda = (p for p in sorted((out / "build").iterdir()) if p.is_dir())
    assert re.fullmatch(r"torch-stable-abi210-cpu-\w+-linux", cpu.name)
    assert cuda.name == cpu.name.replace("cpu", "cu130")
    assert {p.name for p in (cpu / "lib").glob("*.so")} == {"relu-cpu.so", "swiglu-cpu.so"}
    names = {p.name for p in (cuda / "lib").glob("*.so")}
    assert {"relu-cpu.so", "relu-cuda.so", "swiglu-cuda-bf16.so"} < names
    assert metadata(cpu)["name"] == metadata(cuda)["name"] == "both-ways"
    assert metadata(cuda)["backend"] == {"type": "cuda", "archs": ["8.0", "9.0"]}
    assert metadata(cpu)["id"] != metadata(cuda)["id"], "one process may load both"
    assert "SiluAndMul" in (out / "build" / "CARD.md").read_text()


def test_the_package_chooses_a_variant_by_what_torch_is_built_for(tmp_path: Path) -> None:
    said = run("build", "relu", "--hf", "--out", tmp_path / "relu")
    assert "relu was never checked" in said
    assert history.last(discover.find("relu"), "ship")["what"] == str(tmp_path / "relu")
    variants = get_variants_local(tmp_path / "relu" / "build")

    def chosen(backend: CPU | CUDA, torch_version: str = "2.10") -> list[str]:
        (machine,) = {v.arch.platform for v in variants}  # type: ignore[union-attr]
        found, _ = _resolve_variant_for_system(
            variants, backend, machine, "linux", Version(torch_version), True, None
        )
        return [v.variant_str.split("-")[3] for v in found]

    assert chosen(CPU()) == ["cpu"]
    assert chosen(CUDA(Version("13.0"))) == chosen(CUDA(Version("13.2")), "2.14") == ["cu130"]
    assert chosen(CUDA(Version("12.8"))) == []
    assert chosen(CPU(), "2.9") == []


def test_every_op_with_a_kernel_of_its_own_imports_alone(tmp_path: Path) -> None:
    ops = [discover.find(n) for n in discover.builtin_names()]
    names = [op.name for op in ops if op.self_contained and has_sources(op, "cpu")]
    run("build", "--cpu", "--hf", "--out", tmp_path / "all")
    code = """
        import sys
        from pathlib import Path

        class Refuses:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in ("opforge", "platformdirs", "packaging", "rich"):
                    raise ModuleNotFoundError(name)

        sys.meta_path.insert(0, Refuses())
        (variant,) = Path(sys.argv[1]).glob("build/*/")
        sys.path.insert(0, str(variant.parent.parent))
        variant.rename(variant.parent.parent / "kernel_of_all")
        import torch, kernel_of_all as kernel
        a, b = torch.ones(2, 3), torch.ones(3, requires_grad=True)
        kernel.vector_add(a, b).sum().backward()
        assert b.grad.tolist() == [2, 2, 2]
        assert kernel.layers.VectorAdd()(a, b=b).tolist() == [[2] * 3] * 2
        assert kernel.layers.SiluAndMul()(torch.ones(2, 6)).shape == (2, 3)
        print(*(name for name in kernel.__all__ if name != "layers"))
    """
    assert python(code, tmp_path / "all").stdout.split() == sorted(names)


def test_an_op_brings_the_ops_that_it_calls(tmp_path: Path) -> None:
    run("build", "vector_add", "--cpu", "--hf", "--out", tmp_path / "vector-add")
    (variant,) = (tmp_path / "vector-add" / "build").glob("*/")
    libraries = {p.name for p in (variant / "lib").glob("*.so")}
    assert libraries == {"vector_add-cpu.so", "reduce_sum-cpu.so"}
    assert "'reduce_sum'" not in (variant / "__init__.py").read_text()


def test_two_versions_of_a_kernel_live_in_one_process(tmp_path: Path) -> None:
    def version(factor: int) -> ModuleType:
        op = record(tmp_path / str(factor), factor)
        return get_local_kernel(export([op], ["cpu"], output=tmp_path / f"v{factor}" / "times"))

    two, three = version(2), version(3)
    assert two.times(torch.ones(1)) == 2
    assert three.times(torch.ones(1)) == 3
    x = torch.ones(1, requires_grad=True)
    layer = torch.compile(three.layers.Times(), backend="aot_eager", fullgraph=True)
    assert torch.autograd.grad(layer(x), x)[0] == 3


def test_one_build_in_two_places_is_one_kernel(tmp_path: Path) -> None:
    folder = export([record(tmp_path / "op", factor=4)], ["cpu"], output=tmp_path / "times")
    shutil.copytree(folder, tmp_path / "copy")
    for place in (folder, tmp_path / "copy"):
        assert get_local_kernel(place).times(torch.ones(1)) == 4


def test_a_cpu_that_cannot_run_the_library_gets_the_reference(tmp_path: Path) -> None:
    folder = export([record(tmp_path / "op", factor=6)], ["cpu"], output=tmp_path / "times")
    (manifest,) = folder.glob("build/*/lib/*.json")
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"cpu_flags": ["avx9000"]}))
    kernel = get_local_kernel(folder)
    said = "runs through its PyTorch reference on the CPU: .* lacks: avx9000"
    with pytest.warns(UserWarning, match=said):
        assert kernel.times(torch.ones(1)) == 6


def test_an_export_replaces_a_build_with_force_alone_and_nothing_else(tmp_path: Path) -> None:
    folder, op = tmp_path / "times", record(tmp_path / "op")
    folder.mkdir()
    export([op], ["cpu"], output=folder)  # empty: as good as missing
    (first,) = folder.glob("build/*/metadata.json")
    before = first.read_text()
    (folder / "README.md").write_text("mine")
    changed = record(tmp_path / "op", factor=5)
    with pytest.raises(BuildError, match=r"times is not empty; .* with --force"):
        export([changed], ["cpu"], output=folder)
    assert first.read_text() == before
    export([changed], ["cpu"], output=folder, force=True)
    assert first.read_text() != before
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "build"]
    assert {p.name for p in tmp_path.iterdir() if p.name.startswith(".")} == set()


def test_a_build_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = stub_cxx(tmp_path / "broken", on_compile="echo error: no; exit 1")
    monkeypatch.setenv("CXX", str(stub.path))
    with pytest.raises(BuildError, match=r"building times \(cpu\) failed: error: no"):
        export([record(tmp_path / "op")], ["cpu"], output=tmp_path / "new" / "times")
    assert not (tmp_path / "new").exists()


def test_without_a_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ToolchainError, match="no C\\+\\+ compiler found"):
        export([record(tmp_path / "op")], ["cpu"], output=tmp_path / "times")
    assert not (tmp_path / "times").exists()


def refused(ops: list[Op], folder: Path | None, text: str) -> None:
    with pytest.raises(OpforgeError, match=text) as caught:
        export(ops, ["cpu"], output=folder)
    assert "\n" not in str(caught.value)
    assert folder is None or folder.is_file() or not folder.exists()


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    relu, out = discover.find("relu"), tmp_path / "out"
    refused([discover.find("linear_cross_entropy")], out, "linear_cross_entropy is composed of")
    refused([record(tmp_path / "bare", cpp=None)], out, "times has no source for cpu")
    refused([relu, discover.find("swiglu")], None, "several ops make one kernel; name it with")
    refused([relu], tmp_path / "1st", "'1st' cannot be the name of a kernel")
    two = [record(tmp_path / "one"), record(tmp_path / "two")]
    refused(two, out, "two of the ops are called times")
    own = TIMES.replace("{factor}", "2").replace("times(", "reduce_sum(")
    write_op(tmp_path / "own", op_py=own)
    mixed = [discover.find("vector_add"), discover.load_folder(tmp_path / "own").op]
    refused(mixed, out, "two of the ops are called reduce_sum")
    (tmp_path / "file").touch()
    refused([relu], tmp_path / "file", "file is no folder")
    refused([relu], tmp_path / "file" / "relu", "relu cannot be written")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("import numpy", "op.py imports numpy, which may be missing where the kernel is loaded"),
        ("from numpy import pi", "op.py imports numpy"),
        ("import opforge.op", "`import opforge.op` cannot be exported; write `import opforge`"),
        ("import opforge.testing as t", "imports .*, which may be missing"),
    ],
)
def test_imports_that_an_export_cannot_have_are_refused(
    tmp_path: Path, line: str, text: str
) -> None:
    folder = write_op(tmp_path / "op", op_py=f"    {line}{TIMES.replace('{factor}', '2')}")
    refused([discover.load_folder(folder).op], tmp_path / "times", text)


def test_an_op_may_import_its_siblings_and_try_to_import_the_rest(tmp_path: Path) -> None:
    lines = """
        import torch
        from typing import TYPE_CHECKING
        import opforge.op as ops
        from opforge import (
            Backward,
            Op,
        )
        if TYPE_CHECKING:
            import numpy
        try:
            import no_such_module
        except ImportError:
            no_such_module = None
        def late():
            import numpy
            from .lazy import ONE
            return ONE
        from .helpers.factors import TWO
        op = ops.Op(schema="times(Tensor x) -> Tensor y", reference=lambda x: TWO * late() * x)
    """
    folder = write_op(tmp_path / "op", op_py=lines)
    (folder / "helpers").mkdir()
    (folder / "helpers" / "factors.py").write_text("from .ones import ONE\nTWO = 2 * ONE\n")
    (folder / "helpers" / "ones.py").write_text("ONE = 1\n")
    (folder / "lazy.py").write_text("ONE = 1  # é\n")
    (folder / "test_times.py").write_text("import pytest\n")
    export([discover.load_folder(folder).op], ["cpu"], output=tmp_path / "times")
    assert not list((tmp_path / "times").rglob("test_times.py"))
    assert get_local_kernel(tmp_path / "times").times(torch.ones(1)) == 2
