# SPDX-License-Identifier: Apache-2.0
"""Ops as builders of DeepSpeed, in DeepSpeed itself, on its CPU accelerator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from helpers import PATIENCE, has_kernel, write_op

import opforge
from opforge import discover
from opforge.errors import KernelUnavailable, MissingPackage, RecordError
from opforge.integrations import deepspeed as ods
from opforge.integrations.deepspeed.__main__ import main
from opforge.terminal import extras

os.environ["DS_ACCELERATOR"] = "cpu"  # deepspeed asks once, when it is first imported


@pytest.fixture
def deepspeed() -> ModuleType:
    import deepspeed

    return deepspeed


@pytest.fixture
def accelerator(deepspeed: ModuleType) -> Any:
    return deepspeed.accelerator.get_accelerator()


def test_a_builder_has_the_classic_members(deepspeed, cache_dir) -> None:
    made = ods.builder("bias_gelu")
    assert issubclass(made, deepspeed.ops.op_builder.builder.OpBuilder)
    assert (made.__name__, made.NAME, made.BUILD_VAR) == (
        "BiasGeluBuilder",
        "bias_gelu",
        "DS_BUILD_BIAS_GELU",
    )
    one = made()
    assert one.name == "bias_gelu"
    assert one.absolute_name() == "deepspeed.ops.bias_gelu.bias_gelu_op"
    assert [Path(s).name for s in one.sources()] == ["cpu.cpp", "opforge_cpu_module.cpp"]
    assert all(Path(p).is_absolute() and Path(p).exists() for p in one.sources())
    folders = one.include_paths()
    for header in ("opforge/host.h", "opforge_signatures.h"):
        assert [f for f in folders if (Path(f) / header).exists()], header
    assert "-std=c++20" in one.cxx_args()
    assert (one.nvcc_args(), one.extra_ldflags()) == ([], [])


def test_on_a_gpu_it_is_a_builder_for_cuda(deepspeed, accelerator, cache_dir, monkeypatch) -> None:
    monkeypatch.setattr(accelerator, "device_name", lambda: "cuda")
    one = ods.builder("rms_norm")()
    assert isinstance(one, deepspeed.ops.op_builder.builder.CUDAOpBuilder)
    names = [Path(s).name for s in one.sources()]
    assert names == ["backward.cu", "forward.cu", "opforge_cuda_module.cpp"]
    assert {"-DUSE_CUDA", "-std=c++20"} <= set(one.nvcc_args())


def test_load_goes_through_the_builder_and_the_cache(kernel_folder, built) -> None:
    module = ods.builder(kernel_folder)().load()
    assert has_kernel(kernel_folder)
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    assert module.forward(x).tolist() == [2, -4]
    assert module.backward(torch.ones(2), x.detach()).tolist() == [2, 2]
    module.twofold(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2]


def test_an_op_may_be_given_as_a_function_or_a_record(kernel_folder) -> None:
    function = opforge.load(kernel_folder)
    record = discover.record_of(function)
    assert ods.builder(function).OP is ods.builder(record).OP is record
    record = opforge.Op(schema="loose(Tensor x) -> Tensor y", reference=torch.relu)
    with pytest.raises(RecordError, match="loose is not loaded; pass its folder"):
        ods.builder(record)
    with pytest.raises(RecordError, match=r"neither a built-in op .* did you mean 'relu'"):
        ods.builder("rellu")


def test_a_composed_op_has_nothing_to_compile(deepspeed) -> None:
    module = ods.builder("linear_cross_entropy")().load()
    assert module.linear_cross_entropy is opforge.linear_cross_entropy
    assert module.backward is torch.ops.opforge.linear_cross_entropy_backward.default


@pytest.mark.nightly  # it compiles
def test_a_backward_in_plain_pytorch_is_handed_out_as_it_is(tmp_path, cache_dir, deepspeed) -> None:
    folder = write_op(tmp_path / "plain", name="plain", cpp="kernel")
    text = (folder / "op.py").read_text()
    backward = "backward=lambda grad_y: (2 * grad_y,),\n    dtypes"
    (folder / "op.py").write_text(text.replace("dtypes", backward, 1))
    module = ods.builder(folder)().load(verbose=True)
    assert module.forward(torch.ones(2)).tolist() == [2, 2]
    assert module.backward(torch.ones(2))[0].tolist() == [2, 2]


def test_without_sources_for_the_accelerator_it_says_why(tmp_path, deepspeed, capsys) -> None:
    folder = write_op(tmp_path / "gpu_only", name="gpu_only", cpp=None, cu="kernel")
    one = ods.builder(folder)()
    reason = f"{folder} has no source for cpu and no prebuilt library"
    assert not one.is_compatible(verbose=True)
    assert one.error_log == reason
    assert reason in capsys.readouterr().out
    with pytest.raises(KernelUnavailable, match=f"builder of gpu_only cannot load it: {reason}"):
        one.load()
    with pytest.raises(RuntimeError, match=f"Unable to JIT load the gpu_only op.*{reason}"):
        one.jit_load()


def test_what_else_makes_it_incompatible(tmp_path, accelerator, cache_dir, monkeypatch) -> None:
    folder = write_op(tmp_path / "unbuilt", name="unbuilt", cpp="kernel")
    one = ods.builder(folder)()
    assert one.is_compatible()
    assert one.error_log is None
    monkeypatch.setenv("OPFORGE_JIT", "0")
    assert not one.is_compatible()
    assert one.error_log == (
        "it is not built, and OPFORGE_JIT=0 forbids compiling it; run "
        f"`opforge build {folder} --cpu` or unset OPFORGE_JIT"
    )
    monkeypatch.setattr(accelerator, "device_name", lambda: "xpu")
    one = ods.builder(folder)()
    assert not one.is_compatible()
    assert one.error_log == "opforge has kernels for cpu and cuda, and the accelerator is xpu"


def test_registered_builders_are_found_beside_those_of_deepspeed(
    kernel_folder, built, deepspeed, accelerator
) -> None:
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    before = set(ALL_OPS)
    assert "twofold" not in deepspeed.ops.__compatible_ops__  # probed now, before it is registered
    (made,) = ods.register(kernel_folder)
    assert accelerator.get_op_builder("TwofoldBuilder") is made
    assert accelerator.create_op_builder("TwofoldBuilder").load().forward(torch.ones(1)) == 2
    assert deepspeed.ops.op_builder.TwofoldBuilder is made
    assert set(ALL_OPS) == before | {"twofold"}
    assert deepspeed.ops.__compatible_ops__["twofold"]
    (again,) = ods.register(opforge.load(kernel_folder))
    assert accelerator.get_op_builder("TwofoldBuilder") is again
    assert accelerator.create_op_builder("CPUAdamBuilder").name == "cpu_adam"
    assert accelerator.get_op_builder("Unknown").__name__ == "NotImplementedBuilder"


def test_a_taken_name_is_refused_and_nothing_is_registered(tmp_path, deepspeed) -> None:
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    ods.register("vector_add")
    before = dict(ALL_OPS)
    for name, reason in (
        ("cpu_adam", "which has a builder cpu_adam or CpuAdamBuilder of its own; rename the op"),
        ("vector_add", "VectorAddBuilder is that of vector_add; rename one of the ops"),
    ):
        folder = write_op(tmp_path / name, name=name)
        with pytest.raises(RecordError, match=f"{folder} cannot be registered.*{reason}"):
            ods.register("cumsum", folder)
    assert before == ALL_OPS


def test_without_deepspeed_the_error_names_the_extra(monkeypatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    said = (
        r"opforge.integrations.deepspeed needs deepspeed; install it with: "
        r"pip install 'opforge\[deepspeed\]'"
    )
    for function in (ods.builder, ods.register):
        with pytest.raises(MissingPackage, match=said):
            function("relu")


def test_the_report_lists_our_ops(tmp_path) -> None:
    folder = write_op(tmp_path / "gpu_only", name="gpu_only", cpp=None, cu="kernel")
    done = subprocess.run(
        [sys.executable, "-m", "opforge.integrations.deepspeed", "report", "relu", str(folder)],
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if "[" in line}
    assert "OKAY" in rows["relu"]
    assert "OKAY" in rows["cpu_adam"]
    assert "OKAY" not in rows["gpu_only"]


def test_the_command_says_in_a_line_what_is_wrong(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["deepspeed", "report", "rellu"])
    with pytest.raises(SystemExit) as ended:
        main()
    out, error = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert error.startswith("opforge: 'rellu' is neither a built-in op")
