# SPDX-License-Identifier: Apache-2.0
"""Compilers: which are found, which pairs are refused, what a cache key is made of."""

from __future__ import annotations

import os
import re
import sys
import types
from pathlib import Path

import pytest
import torch
from helpers import has_kernel, planned, stub_cxx, stub_nvcc, write_op, write_stub

from opforge import discover
from opforge.build import arch, cache, compile, load, toolchain
from opforge.errors import BuildError, KernelUnavailable, ToolchainError


@pytest.fixture
def op_folder(tmp_path: Path) -> Path:
    """With a header of its own that includes another."""
    folder = write_op(tmp_path / "op", cpp='#include "outer.h"\n', cu='#include "outer.h"\n')
    (folder / "outer.h").write_text('#include "deep/inner.h"\n')
    (folder / "deep").mkdir()
    (folder / "deep" / "inner.h").write_text("// 1\n")
    return folder


@pytest.fixture(autouse=True)
def compilers(cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stub g++ 12 and a stub CUDA 13.0, and a torch without CUDA."""
    monkeypatch.setenv("CXX", str(stub_cxx(tmp_path / "bin").path))
    stub_nvcc(tmp_path / "cuda")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setattr(torch.version, "cuda", None)


def no_nvcc_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)


# --- the key --------------------------------------------------------------------------------------


def differences(folder: Path, change: object, target: str) -> set[str]:
    """Which ingredients of the key a change touches."""
    before = planned(folder, target)
    change()  # type: ignore[operator]
    after = planned(folder, target)
    assert (before.key != after.key) == (before.ingredients != after.ingredients)
    return {
        name
        for name in before.ingredients.keys() | after.ingredients.keys()
        if before.ingredients.get(name) != after.ingredients.get(name)
    }


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_nothing_changed_means_the_same_key(op_folder: Path, target: str) -> None:
    assert differences(op_folder, lambda: None, target) == set()


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_another_torch_is_another_key(
    op_folder: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def upgrade() -> None:
        monkeypatch.setattr(torch, "__version__", "2.99.0")

    assert differences(op_folder, upgrade, target) == {"torch"}


def test_another_compiler_version_is_another_key(op_folder: Path, tmp_path: Path) -> None:
    def upgrade() -> None:
        stub_cxx(tmp_path / "bin", version="13.1.0")

    assert differences(op_folder, upgrade, "cpu") == {"compiler"}
    assert differences(op_folder, lambda: stub_cxx(tmp_path / "bin"), "cuda") == {"host compiler"}


def test_another_nvcc_is_another_key(op_folder: Path, tmp_path: Path) -> None:
    changed = differences(op_folder, lambda: stub_nvcc(tmp_path / "cuda", "13.1"), "cuda")
    assert changed == {"compiler"}


def test_a_wrapper_script_is_asked_every_time(op_folder: Path, tmp_path: Path) -> None:
    """The script stays the same file when the compiler behind it changes."""

    def upgrade() -> None:
        (tmp_path / "bin" / "g++.version").write_text("g++ (Stub) 14.0.0\n")

    assert differences(op_folder, upgrade, "cpu") == {"compiler"}


def test_another_flag_is_another_key(op_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert differences(op_folder, lambda: monkeypatch.setenv("DEBUG", "1"), "cpu") == {"flags"}


def test_another_architecture_is_another_key(
    op_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = differences(
        op_folder, lambda: monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.6"), "cuda"
    )
    assert changed == {"flags", "architectures"}


def test_a_changed_source_or_header_is_another_key(op_folder: Path) -> None:
    op = discover.load_folder(op_folder).op
    first = load.plan(op, "cpu").ingredients
    assert {n for n in first if n.startswith(("source", "header"))} == {
        "source cpu.cpp",
        "header outer.h",
        "header deep/inner.h",
        "header opforge/core/text.h",
        "header opforge/host/registration.h",
        "header opforge/host/older_systems.h",
    }
    for file in ("cpu.cpp", "outer.h", "deep/inner.h"):
        before = load.plan(op, "cpu").ingredients
        path = op_folder / file
        path.write_text(path.read_text() + "// changed\n")
        after = load.plan(op, "cpu").ingredients
        kind = "source" if file == "cpu.cpp" else "header"
        assert {n for n in before if before[n] != after[n]} == {f"{kind} {file}"}


def test_opforge_headers_are_part_of_the_key(tmp_path: Path) -> None:
    folder = write_op(tmp_path / "kernel", cpp="kernel")
    names = planned(folder).ingredients
    assert {"header opforge/host.h", "header opforge/core/types.h"} <= names.keys()


@pytest.mark.usefixtures("untried")
def test_after_a_torch_upgrade_the_op_is_built_again(
    op_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = stub_cxx(tmp_path / "bin")
    op = discover.load_folder(op_folder).op
    old = load.find(op, "cpu")
    assert load.find(op, "cpu") == old
    assert stub.compiles == 1
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    new = load.find(op, "cpu")
    assert stub.compiles == 2
    assert new.path != old.path


# --- finding compilers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "family", "version"),
    [
        ("g++ (Debian 12.2.0-14+deb12u1) 12.2.0", "gcc", "12.2.0"),
        ("g++ (Vendor Toolset 1.2-3) 13.1.0", "gcc", "13.1.0"),
        ("g++ (GCC) 14.2.1 20240801 (Red Hat 14.2.1-1)", "gcc", "14.2.1"),
        ("Ubuntu clang version 18.1.3 (1ubuntu1)", "clang", "18.1.3"),
    ],
)
def test_the_compilers_version_is_read(
    said: str, family: str, version: str, tmp_path: Path
) -> None:
    Path(write_stub(tmp_path / "bin" / "g++", said).path)
    found = toolchain.find_cxx()
    assert (found.family, found.version) == (family, version)


@pytest.mark.parametrize(
    ("program", "remembered"), [("/usr/bin/true", True), ("/usr/bin/false", False)]
)
def test_a_version_query_is_remembered_unless_it_failed(
    program: str, remembered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These are binaries, as compilers are, and print a version; one of them fails."""
    monkeypatch.setenv("CXX", program)
    toolchain.find_cxx()
    assert (cache.root() / "toolchain.json").exists() is remembered


def test_no_cxx_says_what_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        ToolchainError, match=r"no C\+\+ compiler found \(CXX=no-such-compiler\).*g\+\+"
    ):
        toolchain.find_cxx()


def test_without_nvcc_the_error_has_the_pip_command(
    op_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_nvcc_anywhere(monkeypatch)
    op = discover.load_folder(op_folder).op
    command = re.escape(
        "so CUDA kernels cannot be compiled; install it: pip install 'opforge[cuda]'"
    )
    with pytest.raises(ToolchainError, match=f"no nvcc found.*{command}"):
        load.find(op, "cuda")
    with pytest.raises(KernelUnavailable, match=f"opforge.times has no CUDA kernel.*{command}"):
        load.ensure(op, "times", "cuda")


def test_without_nvcc_the_cpu_kernel_still_works(
    kernel_folder: Path, built: cache.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_nvcc_anywhere(monkeypatch)
    twofold = discover.load(kernel_folder)
    assert twofold(torch.ones(3)).tolist() == [2, 2, 2]
    assert has_kernel(kernel_folder)


def test_a_cuda_home_without_nvcc_is_an_error(
    op_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(ToolchainError, match=f"CUDA_HOME={tmp_path} has no bin/nvcc"):
        planned(op_folder, "cuda")


def test_a_toolkit_without_its_runtime_is_an_error(op_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cuda" / "lib64" / "libcudart.so.13").unlink()
    with pytest.raises(ToolchainError, match=r"has nvcc but no libcudart.so.*opforge\[cuda\]"):
        planned(op_folder, "cuda")


def test_use_cuda_0_leaves_cuda_out(op_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USE_CUDA", "0")
    with pytest.raises(ToolchainError, match="CUDA is turned off by USE_CUDA=0"):
        planned(op_folder, "cuda")
    assert planned(op_folder, "cpu")


def test_debug_1_builds_with_debug_information(
    op_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for target, debug, optimised in (
        ("cpu", {"-g", "-O0"}, "-O2"),
        ("cuda", {"-g", "-G"}, "-O3"),
    ):
        monkeypatch.delenv("DEBUG", raising=False)
        release = set(planned(op_folder, target).compile)
        assert {optimised, "-DNDEBUG"} <= release
        assert not debug & release
        monkeypatch.setenv("DEBUG", "1")
        assert debug <= set(planned(op_folder, target).compile)
        assert "-DNDEBUG" not in planned(op_folder, target).compile


# --- pairs ----------------------------------------------------------------------------------------


def test_another_cuda_major_than_torchs_is_an_error(
    op_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    expected = (
        rf"nvcc is 13\.0, but torch {re.escape(torch.__version__)} is built for CUDA 12\.8; the "
        r"major versions must match\. Install a CUDA 12 toolkit and set CUDA_HOME"
    )
    with pytest.raises(ToolchainError, match=expected):
        planned(op_folder, "cuda")


@pytest.mark.usefixtures("untried")
def test_another_cuda_minor_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    folders = [write_op(tmp_path / n, name=n, cpp=None, cu="// nothing\n") for n in ("a", "b", "c")]
    compile._warn_once.cache_clear()
    compile.build([planned(folder, "cuda", "9.0") for folder in folders[:2]])
    compile.build([planned(folders[2], "cuda", "9.0")])
    warnings = [x for x in capsys.readouterr().err.splitlines() if "warning" in x]
    assert warnings == [
        "opforge: warning: nvcc is 13.0, but torch is built for CUDA 13.2; minor versions may "
        "differ"
    ]


@pytest.mark.parametrize(
    ("release", "said", "limits"),
    [
        ("12.6", "g++ (Stub) 15.1.0", "nvcc 12.6 supports gcc 6 to 13, but .* is gcc 15.1.0"),
        ("13.0", "g++ (Stub) 16.1.0", "nvcc 13.0 supports gcc 6 to 15, but .* is gcc 16.1.0"),
        (
            "13.0",
            "clang version 21.0.1",
            "nvcc 13.0 supports clang 3 to 20, but .* is clang 21.0.1",
        ),
    ],
)
def test_a_host_compiler_outside_nvccs_range_is_an_error(
    release: str, said: str, limits: str, op_folder: Path, tmp_path: Path
) -> None:
    stub_nvcc(tmp_path / "cuda", release)
    write_stub(tmp_path / "bin" / "g++", said)
    with pytest.raises(ToolchainError, match=f"{limits}; set CXX to a compiler in that range"):
        planned(op_folder, "cuda")
    assert planned(op_folder, "cpu")


# --- architectures --------------------------------------------------------------------------------


def test_without_a_gpu_and_a_wish_the_default_is_built(op_folder: Path) -> None:
    assert arch.select() == ("8.0", "9.0", "10.0", "9.0+PTX")
    codes = [f for f in planned(op_folder, "cuda").compile if f.startswith("-gencode")]
    assert codes == [
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90,code=sm_90",
        "-gencode=arch=compute_100,code=sm_100",
        "-gencode=arch=compute_90,code=compute_90",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9.0", ("9.0",)),
        ("8.0;9.0a+PTX", ("8.0", "9.0a+PTX")),
        ("8.0 9.0,10.0", ("8.0", "9.0", "10.0")),
        ("8.0;9.0;", ("8.0", "9.0")),
        ("9.0;9.0", ("9.0",)),
        ("Ampere", ("8.0", "8.6")),
        ("ampere+PTX;Hopper", ("8.0", "8.6+PTX", "9.0")),
    ],
)
def test_architectures_are_numbers_or_families(
    text: str, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", text)
    assert arch.select() == expected
    assert arch.select("7.5") == ("7.5",)


@pytest.mark.parametrize("text", ["sm_90", "9", "7.0", "Volta", "9.0+ptx", ";", "9.0;rm -rf"])
def test_an_unknown_architecture_is_an_error(text: str) -> None:
    with pytest.raises(
        ToolchainError, match=r"unknown GPU architecture.*from 7\.5 up.*Turing, Ampere"
    ):
        arch.parse(text)


@pytest.mark.parametrize(
    ("archs", "capability", "runs"),
    [
        (("8.0",), (8, 6), True),
        (("8.6",), (8, 0), False),
        (("8.0",), (9, 0), False),
        (("8.0+PTX",), (9, 0), True),
        (("9.0a",), (9, 0), True),
        (("10.0a",), (10, 3), False),
    ],
)
def test_covers_tells_whether_a_library_runs_on_a_gpu(
    archs: tuple[str, ...], capability: tuple[int, int], runs: bool
) -> None:
    assert arch.covers(archs, capability) is runs


# --- parallel jobs --------------------------------------------------------------------------------


def available(monkeypatch: pytest.MonkeyPatch, cores: int, gigabytes: float) -> None:
    real = Path.read_text
    meminfo = f"MemTotal: 999999999 kB\nMemAvailable:  {int(gigabytes * (1 << 20))} kB\n"
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda p, *a, **k: meminfo if str(p) == "/proc/meminfo" else real(p, *a, **k),
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))


@pytest.mark.parametrize(
    ("cores", "gigabytes", "jobs"), [(2, 64, 2), (64, 8, 4), (64, 0.5, 1), (2, 2.5, 1)]
)
def test_jobs_are_limited_by_cores_and_by_memory(
    cores: int, gigabytes: float, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    available(monkeypatch, cores, gigabytes)
    assert compile.job_limit(2 << 30) == jobs


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize(
    ("wish", "gigabytes", "most"), [("2", 1, 2), (None, 1.5, 1), (None, 64, 3)]
)
def test_no_more_compilers_run_at_once_than_allowed(
    wish: str | None, gigabytes: float, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = tmp_path / "counts"
    running = tmp_path / "running"
    running.mkdir()
    step = f'touch "{running}/$$"; sleep 0.3; ls "{running}" | wc -l >> "{counts}"; '
    step += f'rm "{running}/$$"; touch "$out"'
    stub_cxx(tmp_path / "bin", on_compile=step)
    available(monkeypatch, 3, gigabytes)
    if wish:
        monkeypatch.setenv("MAX_JOBS", wish)
    folder = write_op(tmp_path / "many", cpp=None)
    for i in range(6):
        (folder / f"part{i}.cpp").touch()
    compile.build([planned(folder)])
    assert max(map(int, counts.read_text().split())) == most


@pytest.mark.parametrize("wish", ["0", "-1", "many", "1.5", "²"])
def test_a_bad_max_jobs_is_an_error(wish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_JOBS", wish)
    with pytest.raises(BuildError, match=f"MAX_JOBS='{wish}' is not a positive whole number"):
        compile.job_limit(1)


def test_cuda_home_then_path_then_the_pip_toolkit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("path", "pip"):
        stub_nvcc(tmp_path / name)
    pathfinder = types.ModuleType("cuda.pathfinder")
    pathfinder.find_nvidia_binary_utility = lambda _: str(tmp_path / "pip" / "bin" / "nvcc")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert toolchain.find_cuda().origin == "CUDA_HOME"
    monkeypatch.delenv("CUDA_HOME")
    assert toolchain.find_cuda().origin == "PATH"
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    assert toolchain.find_cuda().origin == "pip toolkit"
