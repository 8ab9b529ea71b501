# SPDX-License-Identifier: Apache-2.0
"""Sources that DeepSpeed compiles itself: what an export holds, and its own jit_load of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from helpers import python, write_op
from op_cases import OPS
from typer.testing import CliRunner

from opforge import cli, discover, history
from opforge.errors import BuildError, OpforgeError, RecordError
from opforge.integrations import deepspeed as ods
from opforge.ship import sources

# As if opforge were not installed.
ALONE = "import sys; sys.modules['opforge'] = None"

# A builder as DeepSpeed's own are written.
CLASSIC_CPP = """\
#include <pybind11/pybind11.h>
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("forward", [](double x) { return 2 * x; });
  m.def("backward", [](double grad) { return 2 * grad; });
}
"""
CLASSIC_PY = """\
from deepspeed.ops.op_builder.builder import OpBuilder

class DoubleBuilder(OpBuilder):
    BUILD_VAR = "DS_BUILD_DOUBLE"
    NAME = "classic_double"

    def __init__(self):
        super().__init__(name=self.NAME)

    def absolute_name(self):
        return f"deepspeed.ops.{self.NAME}_op"

    def sources(self):
        return [__file__.replace("classic.py", "classic.cpp")]

    def cxx_args(self):
        return ["-O0"]
"""


def run(code: str, folder: Path, *args: object) -> str:
    """Run code in a process whose extensions are in the folder, on DeepSpeed's CPU accelerator."""
    environment = {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(folder / "extensions")}
    return python(code, *args, environment=environment).stdout


def test_an_export_is_compiled_by_deepspeed_alone(tmp_path) -> None:
    folder = write_op(tmp_path / "twofold", name="twofold", cpp="kernel")
    ods.export_sources(folder, tmp_path / "sources")
    shutil.rmtree(folder)
    code = f"""
        {ALONE}
        sys.path.insert(0, sys.argv[1])
        import torch
        from builder import TwofoldBuilder
        module = TwofoldBuilder().load()
        assert module.__file__.endswith("twofold.so")
        assert module.forward(torch.ones(2)).tolist() == [2, 2]
        assert module.forward is module.twofold and not hasattr(module, "backward")
        try:
            module.forward(torch.ones(2, 2).t()[:, :1].expand(2, 2).t())
        except RuntimeError as error:
            print(error)
    """
    assert "x must be contiguous" in run(code, tmp_path, tmp_path / "sources")


def test_a_classic_builder_works_beside_ours(tmp_path, kernel_folder, built) -> None:
    (tmp_path / "classic.cpp").write_text(CLASSIC_CPP)
    (tmp_path / "classic.py").write_text(CLASSIC_PY)
    code = """
        import sys
        sys.path.insert(0, sys.argv[1])
        import torch
        from classic import DoubleBuilder
        from deepspeed.accelerator import get_accelerator
        from opforge.integrations import deepspeed as ods
        ods.register(sys.argv[2])
        theirs, ours = DoubleBuilder(), get_accelerator().create_op_builder("TwofoldBuilder")
        for _ in range(2):
            assert ours.load().forward(torch.ones(1)).item() == 2
            assert theirs.load().forward(3.0) == theirs.load().backward(3.0) == 6
    """
    run(code, tmp_path, tmp_path, kernel_folder)


def test_an_export_holds_all_files_and_nothing_of_this_machine(tmp_path) -> None:
    folder = ods.export_sources("rms_norm", tmp_path / "new" / "sources")
    files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert {"builder.py", "opforge_signatures.h", "opforge_cpu_module.cpp"} <= files
    assert {"op/cpu.cpp", "op/forward.cu", "op/backward.cu", "op/kernel.cuh"} <= files
    assert {"include/opforge/host.h", "include/opforge/host/module.h"} <= files
    assert "include/opforge/families/gated/cpu_host.h" not in files, "only headers that it needs"
    here = str(Path(discover.__file__).parent)
    assert not [f for f in files if here in (folder / f).read_text()]


def test_headers_from_outside_the_folder_come_along(tmp_path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "extra.h").write_text("#define EXTRA 1\n")
    record = """
        import torch
        from opforge import Build, Op
        op = Op("borrows(Tensor x) -> Tensor y", torch.relu, build=Build(include=["../shared"]))
    """
    folder = write_op(tmp_path / "borrows", op_py=record, cpp="#include <extra.h>\n")
    out = ods.export_sources(folder, tmp_path / "out")
    assert (out / "include_1" / "extra.h").is_file()
    assert "'include_1'" in (out / "builder.py").read_text()


def test_what_cannot_be_exported_leaves_nothing_behind(tmp_path, monkeypatch) -> None:
    out = tmp_path / "out"
    with pytest.raises(RecordError, match="linear_cross_entropy is composed of other"):
        ods.export_sources("linear_cross_entropy", out)
    packaged = """
        import torch
        from opforge import Build, Op, PackageHeaders
        headers = PackageHeaders("torch", "torch/include")
        op = Op("packaged(Tensor x) -> Tensor y", torch.relu, build=Build(include=[headers]))
    """
    with pytest.raises(
        RecordError, match="packaged includes headers of the installed package torch"
    ):
        ods.export_sources(write_op(tmp_path / "packaged", op_py=packaged), out)
    twice = write_op(tmp_path / "twice", name="twice")
    (twice / "more").mkdir()
    (twice / "more" / "cpu.cpp").write_text("// another\n")
    with pytest.raises(BuildError, match=r"twice has two sources called cpu.cpp"):
        ods.export_sources(twice, out)
    before = sorted(p.name for p in tmp_path.iterdir())
    copy = shutil.copyfile

    def full_disk(source: Path, place: Path) -> None:
        if source.name == "host.h":
            raise OSError(28, "No space left on device")
        copy(source, place)

    monkeypatch.setattr(sources.shutil, "copyfile", full_disk)
    with pytest.raises(BuildError, match="out cannot be written: No space left"):
        ods.export_sources("relu", out)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_a_folder_with_something_in_it_is_left_alone(tmp_path) -> None:
    (tmp_path / "mine").write_text("precious")
    for place, said in ((tmp_path, "is not empty"), (tmp_path / "mine", "is no folder")):
        with pytest.raises(BuildError, match=f"{place} {said}; choose another place"):
            ods.export_sources("relu", place)
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_the_command_exports_as_well(tmp_path, cache_dir) -> None:
    out = tmp_path / "out"
    for more in [], ["--force"]:
        command = ["export", "relu", "--deepspeed", "--out", str(out), *more]
        done = CliRunner().invoke(cli.app, command, catch_exceptions=False)
        assert f"sources: {out}" in done.output.replace("\n", "")
        assert (out / "builder.py").is_file()
        assert history.last(discover.find("relu"), "ship")["what"] == str(out)
    with pytest.raises(OpforgeError, match="--model and --call go with --kernelbench"):
        CliRunner().invoke(cli.app, [*command, "--call", "relu(x)"], catch_exceptions=False)


# What follows compiles for minutes. By day one small op is compiled.

BUILT = [name for name in OPS if discover.find(name).self_contained]


@pytest.mark.nightly
@pytest.mark.parametrize("name", BUILT)
def test_an_export_of_every_op_computes_what_the_op_does(name, tmp_path) -> None:
    ods.export_sources(name, tmp_path / "sources")
    code = """
        import sys
        sys.path.insert(0, sys.argv[1])
        import builder, torch
        from opforge import Make, discover
        op = discover.find(sys.argv[2])
        (made,) = [c for n, c in vars(builder).items() if getattr(c, "NAME", "") == op.name]
        forward, count = made().jit_load(verbose=False).forward, 0
        for case in op.iter_cases(Make()):
            found, expected = forward(*case), getattr(torch.ops.opforge, op.name)(*case)
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
            count += 1
        print(count)
    """
    assert int(run(code, tmp_path, tmp_path / "sources", name).split()[-1]) > 3


@pytest.mark.nightly
def test_jit_load_of_a_builder_compiles_the_sources_where_they_are(tmp_path) -> None:
    code = """
        import torch
        from opforge.integrations import deepspeed as ods
        module = ods.builder("relu")().jit_load(verbose=False)
        assert module.forward(torch.tensor([-1.0, 2.0])).tolist() == [0, 2]
        assert module.backward(torch.ones(2), torch.tensor([0.0, 2.0])).tolist() == [0, 1]
    """
    run(code, tmp_path)


@pytest.mark.nightly
@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc")
@pytest.mark.parametrize("name", ["relu", "rms_norm"])
def test_nvcc_compiles_an_export_with_the_flags_of_torch(name, tmp_path) -> None:
    from torch.utils import cpp_extension

    out = ods.export_sources(name, tmp_path / "sources")
    kit = sources.kit(discover.find(name), "cuda").relative()
    include = Path(torch.__file__).parent / "include"
    for source in kit.files:
        if source.suffix != ".cu":
            continue
        command = ["nvcc", *cpp_extension.COMMON_NVCC_FLAGS, "-gencode=arch=compute_90,code=sm_90"]
        command += ["--compiler-options", "-fPIC", *kit.nvcc, *(f"-I{f}" for f in kit.folders)]
        command += ["-isystem", str(include), "-c", str(source), "-o", os.devnull]
        done = subprocess.run(command, cwd=out, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
