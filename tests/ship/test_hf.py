# SPDX-License-Identifier: Apache-2.0
"""Exported kernels run in Hugging Face's package, without opforge and beside it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import kernels
import pytest
import torch
from helpers import python, write_op
from kernels import Mode
from kernels._rust import Digest, DigestAlgorithm, Metadata
from torch import nn

import opforge
from opforge import discover
from opforge.ship import hf
from opforge.ship.hf import export

# Imports a variant as `kernels` does, where torch and Python's own modules are all there is.
ALONE = """
    import importlib.util, json, sys, torch

    HIDDEN = ("opforge", "kernels", "typer", "rich", "platformdirs", "packaging", "ninja")

    class Refuses:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in HIDDEN:
                raise ModuleNotFoundError(name)

    def load(variant):
        name = json.load(open(f"{variant}/metadata.json"))["id"]
        spec = importlib.util.spec_from_file_location(name, f"{variant}/__init__.py")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    sys.meta_path.insert(0, Refuses())
    kernel = load(sys.argv[1])
"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """relu and rms_norm as one kernel for the CPU."""
    ops = [discover.find(name) for name in ("relu", "rms_norm")]
    return export(ops, ["cpu"], output=tmp_path_factory.mktemp("hub") / "two-ops")


@pytest.fixture(scope="session")
def kernel(folder: Path) -> ModuleType:
    return kernels.get_local_kernel(folder)


def variant_of(folder: Path) -> Path:
    (variant,) = (p for p in (folder / "build").iterdir() if p.is_dir())
    return variant


def test_the_metadata_and_the_digests_are_as_the_package_wants_them(folder: Path) -> None:
    variant = variant_of(folder)
    metadata = Metadata.read_from_file(variant / "metadata.json")
    assert (str(metadata.name), metadata.version, metadata.license) == ("two-ops", 1, "apache-2.0")
    assert metadata.digest is not None
    metadata.digest.validate(Digest.hash_variant(DigestAlgorithm.SHA256, variant))


def test_the_kernel_has_functions_layers_and_a_namespace_of_its_own(kernel: ModuleType) -> None:
    assert kernel.__all__ == ["layers", "relu", "rms_norm"]
    assert kernel.layers.__all__ == ["GemmaRMSNorm", "LlamaRMSNorm", "RMSNorm", "ReLU"]
    name = f"{kernel.__name__}::rms_norm"
    assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")


def test_results_and_gradients_equal_those_of_opforge_in_one_process(kernel: ModuleType) -> None:
    results = []
    for library in (opforge, kernel):
        x, weight = torch.randn(2, 33, generator=torch.Generator().manual_seed(0)), torch.ones(33)
        x.requires_grad_()
        y = library.rms_norm(library.relu(x), weight.requires_grad_())
        y.square().sum().backward()
        results.append((y, x.grad, weight.grad))
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)
    assert kernel.relu.__module__ != opforge.relu.__module__


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.relu = nn.Linear(8, 16), nn.RMSNorm(16), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.norm(self.linear(x)))


def steps(net: nn.Module, run: nn.Module) -> list[torch.Tensor]:
    """The result and the gradients of a training step, and the result of an inference."""
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    y = run(x)
    y.square().sum().backward()
    grads = [p.grad for p in net.parameters()]
    with torch.no_grad():
        return [y, run(x), *[g for g in grads if g is not None]]


def kernelized(folder: Path, mode: Mode) -> Net:
    """A net whose layers are those of the kernel; it may not fall back to its own."""
    torch.manual_seed(0)
    mapping = {
        name: {"cpu": {mode: kernels.LocalLayerRepository(repo_path=folder, layer_name=name)}}
        for name in ("RMSNorm", "ReLU")
    }
    with pytest.MonkeyPatch.context() as patch, kernels.use_kernel_mapping(mapping):
        for layer in (nn.RMSNorm, nn.ReLU):  # as replace_kernel_forward_from_hub does, for a while
            patch.setattr(layer, "kernel_layer_name", layer.__name__, raising=False)
        return kernels.kernelize(Net(), mode=mode, use_fallback=False)


@pytest.mark.parametrize("base", [Mode.INFERENCE, Mode.TRAINING])
@pytest.mark.parametrize(
    "backend", [None, "aot_eager", pytest.param("inductor", marks=pytest.mark.nightly)]
)
def test_kernelize_swaps_the_layers_in(
    folder: Path, kernel: ModuleType, base: Mode, backend: str | None
) -> None:
    net = kernelized(folder, base | Mode.TORCH_COMPILE if backend else base)
    assert net.norm.forward.__func__ is kernel.layers.RMSNorm.forward
    assert net.relu.forward.__func__ is kernel.layers.ReLU.forward
    torch._dynamo.reset()
    run = torch.compile(net, backend=backend, fullgraph=True) if backend else net
    torch.manual_seed(0)
    plain = Net()
    for ours, theirs in zip(steps(net, run), steps(plain, plain), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_it_runs_without_opforge_and_what_opforge_needs(folder: Path) -> None:
    code = (
        ALONE
        + """
    x = torch.randn(3, 5, requires_grad=True)
    weight = torch.ones(5, requires_grad=True)

    def run(x):
        return kernel.rms_norm(kernel.relu(x), weight, eps=1e-6)

    expected = torch.rms_norm(torch.relu(x), (5,), weight, 1e-6)
    wanted = torch.autograd.grad(expected.sum(), (x, weight))
    for call in (run, torch.compile(run, backend="aot_eager", fullgraph=True)):
        y = call(x)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), (x, weight)), wanted)
    torch.library.opcheck(getattr(torch.ops, kernel.__name__).relu.default, (x,))
    assert "opforge" not in sys.modules
    """
    )
    python(code, variant_of(folder))


def test_a_wrong_argument_raises_as_in_opforge(kernel: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"opforge\.rms_norm: weight must have shape \(5,\)"):
        kernel.rms_norm(torch.ones(2, 5), torch.ones(4))


def test_a_cuda_tensor_without_a_library_for_it_is_an_error(kernel: ModuleType) -> None:
    load = sys.modules[f"{kernel.__name__}._opforge.build.load"]
    with pytest.raises(Exception, match=r"no CUDA kernel for this tensor: .* no cuda library"):
        load.ensure(load.record("relu"), "relu", "cuda")


def test_the_hub_keeps_files_as_links_and_an_op_still_finds_its_parts(
    tmp_path: Path, untried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf, "_try_importing", lambda variants: None)
    record = """
        import torch
        from opforge import Build, Op
        op = Op(schema="parted(Tensor x) -> Tensor y", reference=lambda x: 2 * x,
                dtypes=(torch.float32,), build=Build(by_dtype=["cpu"]))
    """
    source = write_op(tmp_path / "op", name="parted", op_py=record, cpp="kernel")
    op = discover.load_folder(source).op
    variant = variant_of(export([op], ["cpu"], output=tmp_path / "parted"))
    assert len(list((variant / "lib").glob("*.so"))) == 2
    (tmp_path / "blobs").mkdir()
    for i, file in enumerate(p for p in sorted(variant.rglob("*")) if p.is_file()):
        file.rename(tmp_path / "blobs" / str(i))
        file.symlink_to(os.path.relpath(tmp_path / "blobs" / str(i), file.parent))
    python(ALONE + "    assert kernel.parted(torch.ones(3)).tolist() == [2, 2, 2]", variant)


@pytest.mark.cuda
def test_the_cuda_variant_serves_a_gpu_and_the_cpu(tmp_path: Path) -> None:
    ops = [discover.find("relu"), discover.find("swiglu")]
    kernel = kernels.get_local_kernel(export(ops, ["cpu", "cuda"], output=tmp_path / "two"))
    for device in ("cuda", "cpu"):
        x = torch.randn(4, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
        assert torch.equal(kernel.relu(x), torch.relu(x))
        y = kernel.layers.SiluAndMul()(x)
        torch.testing.assert_close(y, nn.functional.silu(x[:, :32]) * x[:, 32:])
        torch.autograd.grad(y.sum(), x)
