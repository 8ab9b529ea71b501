# SPDX-License-Identifier: Apache-2.0
"""Building and loading, from a first call to a prebuilt library."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import stat
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from helpers import (
    CPU_CPP,
    REAL_CXX,
    foreign_torch_symbols,
    has_kernel,
    planned,
    python,
    recording_cxx,
    shim_functions,
    stub_cxx,
    undefined_symbols,
    write_op,
)

import opforge
from opforge import discover
from opforge.build import cache, compile, load
from opforge.errors import BuildError, CacheError, KernelUnavailable
from opforge.ship import audit

pytestmark = pytest.mark.usefixtures("cache_dir")

KERNEL = CPU_CPP.format(name="times", factor=2)

# --- import ---------------------------------------------------------------------------------------


def test_importing_opens_few_files_builds_nothing_and_leaves_cuda_alone(tmp_path: Path) -> None:
    folder = write_op(tmp_path / "op", cpp=None)
    code = """
        import os, sys
        import torch

        opened, started, before = [], [], set(sys.modules)

        def note(event, arguments):
            if event == "open":
                opened.append(str(arguments[0]))
            if event in ("subprocess.Popen", "os.posix_spawn", "os.system", "os.fork"):
                started.append(event)

        sys.addaudithook(note)
        import opforge
        assert not started, started
        assert len(opened) <= 60, opened
        new = {n.split(".")[0] for n in set(sys.modules) - before}
        assert not new & {"ninja", "rich", "cuda", "triton"}, new
        assert "opforge.build.compile" not in sys.modules
        assert "torch.utils.cpp_extension" not in set(sys.modules) - before
        assert not torch.cuda.is_initialized()

        import opforge
        times = opforge.load(sys.argv[1])
        assert not torch.cuda.is_initialized()
        assert os.listdir(os.environ["HOME"]) == []
        child = os.fork()
        if child == 0:
            os._exit(0 if times(torch.ones(2)).tolist() == [2, 2] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """
    home = tmp_path / "home"
    home.mkdir()
    places = {"HOME": str(home), "XDG_CACHE_HOME": str(home), "OPFORGE_CACHE_DIR": ""}
    python(code, folder, environment=places)


# --- the first call -------------------------------------------------------------------------------


@pytest.mark.usefixtures("untried")
def test_sixteen_threads_making_the_first_call_build_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = recording_cxx(tmp_path / "bin")
    monkeypatch.setenv("CXX", str(stub.path))
    folder = write_op(tmp_path / "op", name="threaded", cpp="kernel")
    barrier = threading.Barrier(16)

    def first_call(i: int) -> list[float]:
        barrier.wait()
        return opforge.load(folder)(torch.full((2,), float(i))).tolist()

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(first_call, range(16)))
    assert results == [[2 * i, 2 * i] for i in range(16)]
    assert stub.compiles == 1
    assert has_kernel(folder)
    assert discover.load_folder(folder).op.namespace == "opforge_user"


@pytest.mark.usefixtures("untried")
def test_one_build_serves_several_plans_and_the_same_plan_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = stub_cxx(tmp_path / "bin")
    monkeypatch.setenv("CXX", str(stub.path))
    one, two = (planned(write_op(tmp_path / n, name=n)) for n in ("one", "two"))
    libraries = compile.build([two, one, two])
    assert [lib.manifest["op"] for lib in libraries] == ["two", "one", "two"]
    assert stub.compiles == 2
    assert compile.build([one, two]) == [libraries[1], libraries[0]]
    assert stub.compiles == 2


@pytest.mark.nightly
def test_a_manifest_tells_what_the_library_is(built: cache.Library) -> None:
    facts = built.manifest
    assert facts["op"] == "twofold"
    assert facts["target"] == "cpu"
    assert facts["abi"] == [2, 10]
    assert facts["tried"] == f"loads under torch {torch.__version__}"
    assert facts["size"] == built.path.stat().st_size
    assert stat.S_IMODE(built.folder.stat().st_mode) == 0o700
    assert sorted(p.name for p in built.folder.iterdir()) == ["manifest.json", "twofold-cpu.so"]


# --- failures -------------------------------------------------------------------------------------


def test_a_compile_error_shows_file_line_and_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", REAL_CXX)
    folder = write_op(tmp_path / "op", cpp="int f() {\n  return 1;\n}\nint g() { return oops; }\n")
    times = discover.load(folder)
    with pytest.raises(BuildError) as caught:
        times(torch.ones(2))
    first, last = str(caught.value).splitlines()
    source = re.escape(str(folder / "cpu.cpp"))
    assert re.match(rf"building times \(cpu\) failed: {source}:4:\d+: error: .*oops", first)
    log = Path(last.removeprefix("full log: "))
    assert log.is_relative_to(cache.root())
    assert "oops" in log.read_text()
    assert list((cache.root() / "libs").iterdir()) == []


def test_each_op_gets_its_own_diagnostic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", REAL_CXX)
    plans = [
        planned(write_op(tmp_path / name, name=name, cpp=f"int f() {{ return {name}_oops; }}\n"))
        for name in ("one", "two")
    ]
    with pytest.raises(BuildError) as caught:
        compile.build(plans)
    failed = re.match(r"building (\w+) ", str(caught.value))
    assert failed
    assert f"{failed[1]}_oops" in str(caught.value)
    log = cache.log_path(f"{failed[1]}-cpu").read_text()
    assert f"{failed[1]}_oops" in log


@pytest.mark.usefixtures("untried")
def test_a_killed_linker_is_a_failed_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when the half of the library it wrote is still there."""
    stub = stub_cxx(tmp_path / "bin", on_link='echo half > "$out"; kill -9 $$')
    monkeypatch.setenv("CXX", str(stub.path))
    plan = planned(write_op(tmp_path / "op"))
    with pytest.raises(BuildError, match=r"building times \(cpu\) failed"):
        compile.build([plan])
    assert cache.lookup(plan.entry) is None
    assert list((cache.root() / "libs").iterdir()) == []


@pytest.mark.nightly
def test_a_library_that_never_finishes_loading_is_given_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", REAL_CXX)
    monkeypatch.setattr(compile, "TRIAL_LIMIT", 4.0)
    never = "#include <unistd.h>\nstatic int never = [] { while (true) sleep(60); return 0; }();\n"
    plan = planned(write_op(tmp_path / "op", cpp=KERNEL + never))
    with pytest.raises(BuildError, match="was built but is still loading after 4 s"):
        compile.build([plan])
    assert cache.lookup(plan.entry) is None


def test_a_library_that_crashes_on_load_is_tried_in_a_child_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", REAL_CXX)
    boom = "#include <cstdlib>\nstatic int boom = [] { std::abort(); return 0; }();\n"
    times = discover.load(write_op(tmp_path / "op", cpp=KERNEL + boom))
    with pytest.raises(BuildError, match=r"times \(cpu\) was built but crashes when.*\(signal 6\)"):
        times(torch.ones(2))
    assert list((cache.root() / "libs").iterdir()) == []


# --- odd paths ------------------------------------------------------------------------------------

ODD = 'sp ace/ünï/it\'s "quoted"/$HOME $$ ${x}/-arch=arch/a;b&c|(d)[e]*?{f}#%:g'


def test_odd_paths_build_and_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", REAL_CXX)
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / ODD / "cache"))
    folder = write_op(tmp_path / ODD / "op", name="odd", cpp="kernel")
    assert opforge.load(folder)(torch.ones(3)).tolist() == [2, 2, 2]
    assert has_kernel(folder)
    (library,) = cache.entries()
    assert library.path.is_relative_to(tmp_path / ODD)


@pytest.mark.nightly
def test_nvcc_builds_in_a_path_with_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not shutil.which("nvcc"):
        pytest.skip("needs nvcc")
    place = tmp_path / "sp ace" / "ünï arch"
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(place / "cache"))
    folder = write_op(place / "op", cpp=None, cu="kernel")
    (library,) = compile.build([planned(folder, "cuda", "9.0")])
    assert library.path.is_relative_to(place)
    assert library.manifest["archs"] == ["9.0"]


# --- prebuilt -------------------------------------------------------------------------------------


@pytest.fixture
def prebuilt(built: cache.Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of prebuilt libraries; the cache is another one, and empty."""
    place = tmp_path / "prebuilt"
    place.mkdir()
    shutil.copy(built.path, place / "twofold-cpu.so")
    shutil.copy(built.folder / "manifest.json", place / "twofold-cpu.json")
    monkeypatch.setenv("OPFORGE_PREBUILT", str(place))
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("OPFORGE_JIT", "0")
    return place


USE_PREBUILT = """
    import sys, torch, opforge
    twofold = opforge.load(sys.argv[1])
    assert twofold(torch.ones(3)).tolist() == [2, 2, 2]
    assert torch._C._dispatch_has_kernel_for_dispatch_key("opforge_user::twofold", "CPU")
"""


def test_a_prebuilt_library_is_used_without_any_compiler(
    prebuilt: Path, kernel_folder: Path, tmp_path: Path
) -> None:
    python(USE_PREBUILT, kernel_folder, environment={"PATH": "/nowhere", "CXX": "/nowhere/g++"})
    assert not (tmp_path / "cache" / "libs").exists()


def test_a_prebuilt_library_in_the_op_folder_is_used(
    prebuilt: Path, kernel_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "shipped"
    shutil.copytree(kernel_folder, folder)
    shutil.copytree(prebuilt, folder / "prebuilt")
    python(USE_PREBUILT, folder, environment={"OPFORGE_PREBUILT": "", "CXX": "/nowhere/g++"})


def a_foreign_abi(facts: dict) -> None:
    facts["abi"] = [3, 0]


def a_newer_torch(facts: dict) -> None:
    facts["abi"] = [2, 99]


def an_unknown_abi(facts: dict) -> None:
    facts["abi"] = None


def another_machine(facts: dict) -> None:
    facts["machine"] = "sparc64"


def another_cpu(facts: dict) -> None:
    facts["cpu_flags"] = ["avx9000"]


def another_schema(facts: dict) -> None:
    facts["ingredients"]["signature"] = "0" * 64


def another_namespace(facts: dict) -> None:
    flags = facts["ingredients"]["flags"]
    facts["ingredients"]["flags"] = flags.replace("=opforge_user", "=opforge_user_2")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (a_foreign_abi, "is built for another ABI"),
        (a_newer_torch, r"is built for the stable ABI of torch 2\.99 and newer; this is torch"),
        (an_unknown_abi, "is built for another ABI"),
        (another_machine, "is built for sparc64, but this machine is"),
        (another_cpu, "needs CPU instructions that this CPU lacks: avx9000"),
        (another_schema, "was built from another version of twofold's schema"),
        (another_namespace, "is built for another namespace"),
    ],
)
def test_a_library_that_does_not_fit_is_refused_before_it_is_loaded(
    change: Callable[[dict], None],
    said: str,
    prebuilt: Path,
    kernel_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manifest = prebuilt / "twofold-cpu.json"
    facts = json.loads(manifest.read_text())
    change(facts)
    manifest.write_text(json.dumps(facts))
    loaded: list[str] = []
    monkeypatch.setattr(torch.ops, "load_library", loaded.append)
    monkeypatch.setattr(load, "_loaded", {})
    monkeypatch.setattr(load, "_failed", {})
    op = discover.load_folder(kernel_folder).op
    with pytest.raises(KernelUnavailable, match=f"{prebuilt}/twofold-cpu.so {said}"):
        load.find(op, "cpu")
    with pytest.warns(UserWarning, match=f"PyTorch reference.*{said}"):
        load.ensure(op, "twofold", "cpu")
    assert loaded == []


def test_a_prebuilt_library_without_a_manifest_is_refused(
    prebuilt: Path, kernel_folder: Path
) -> None:
    (prebuilt / "twofold-cpu.json").unlink()
    op = discover.load_folder(kernel_folder).op
    with pytest.raises(KernelUnavailable, match=r"twofold-cpu.so has no manifest beside it"):
        load.find(op, "cpu")


def test_a_damaged_prebuilt_library_is_refused(prebuilt: Path, kernel_folder: Path) -> None:
    with open(prebuilt / "twofold-cpu.so", "ab") as file:
        file.write(b"\0")
    op = discover.load_folder(kernel_folder).op
    with pytest.raises(CacheError, match="does not match the digest in its manifest"):
        load.find(op, "cpu")


def test_a_prebuilt_library_that_cannot_be_loaded_is_no_crash(
    prebuilt: Path, tmp_path: Path
) -> None:
    """Such as one that needs a newer libc. A CPU op then computes through its reference."""
    content = b"not a library"
    (prebuilt / "odd_one-cpu.so").write_bytes(content)
    facts = json.loads((prebuilt / "twofold-cpu.json").read_text())
    folder = write_op(tmp_path / "op", name="odd_one")
    op = discover.load_folder(folder).op
    facts["library"] = "odd_one-cpu.so"
    facts["sha256"] = hashlib.sha256(content).hexdigest()
    facts["ingredients"]["signature"] = load.signature_digest(op)
    (prebuilt / "odd_one-cpu.json").write_text(json.dumps(facts))
    with pytest.warns(UserWarning, match=r"PyTorch reference.*odd_one-cpu.so cannot be loaded"):
        assert opforge.load(folder)(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize("compiler", [REAL_CXX, "/nowhere/g++"])
def test_with_jit_off_and_nothing_built_the_error_says_what_to_run(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPFORGE_JIT", "0")
    monkeypatch.setenv("CXX", compiler)
    folder = write_op(tmp_path / "my op")
    op = discover.load_folder(folder).op
    expected = (
        "times-cpu.so is missing, and OPFORGE_JIT=0 forbids compiling it; "
        f"run `opforge build '{folder}' --cpu` or unset OPFORGE_JIT"
    )
    with pytest.raises(KernelUnavailable, match=re.escape(expected)):
        load.find(op, "cpu")
    with pytest.warns(UserWarning, match=re.escape(expected)):
        assert opforge.load(folder)(torch.ones(2)).tolist() == [2, 2]


def test_with_jit_off_a_cached_library_is_used(
    built: cache.Library, kernel_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPFORGE_JIT", "0")
    python(USE_PREBUILT, kernel_folder)


# --- versions -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("untried")
@pytest.mark.nightly
def test_two_versions_of_an_op_work_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", REAL_CXX)
    folder = tmp_path / "op"
    x = torch.ones(2)
    double = opforge.load(write_op(folder, name="versioned", factor=2, cpp="kernel"))
    assert double(x).tolist() == [2, 2]
    assert has_kernel(folder)
    triple = opforge.load(write_op(folder, name="versioned", factor=3, cpp="kernel"))
    assert triple(x).tolist() == [3, 3]
    assert has_kernel(folder)
    assert double(x).tolist() == [2, 2]
    assert triple.namespace != double.namespace


def test_a_version_loaded_before_is_found_again(tmp_path: Path) -> None:
    folder = tmp_path / "op"
    first = opforge.load(write_op(folder, name="back_and_forth", factor=2, cpp=None))
    second = opforge.load(write_op(folder, name="back_and_forth", factor=3, cpp=None))
    assert opforge.load(write_op(folder, name="back_and_forth", factor=2, cpp=None)) is first
    assert opforge.load(write_op(folder, name="back_and_forth", factor=3, cpp=None)) is second


def test_equal_folders_are_ops_of_their_own(tmp_path: Path) -> None:
    ops = [opforge.load(write_op(tmp_path / n, name="copied", cpp=None)) for n in ("a", "b", "c")]
    assert len({op.namespace for op in ops}) == 3
    assert [op(torch.ones(1)).item() for op in ops] == [2, 2, 2]


# --- the stable ABI -------------------------------------------------------------------------------


def test_the_shims_of_later_versions_are_told_apart() -> None:
    old, new = shim_functions((2, 10)), shim_functions((2, 99))
    assert {"torch_library_impl", "torch_call_dispatcher", "aoti_torch_get_dtype"} <= old
    assert old < new


def test_a_cpu_library_uses_nothing_but_the_stable_shim(built: cache.Library) -> None:
    assert foreign_torch_symbols(built.path) == set()
    assert any(s.startswith("torch_") for s in undefined_symbols(built.path))


def test_the_symbol_audit_finds_what_is_not_stable(tmp_path: Path) -> None:
    newer = min(shim_functions((2, 99)) - shim_functions((2, 10)))
    source = tmp_path / "x.cpp"
    source.write_text(
        f'extern "C" int {newer}(); namespace at {{ int get_thing(int); }}\n'
        f"int f() {{ return {newer}() + at::get_thing(1); }}\n"
    )
    library = tmp_path / "x.so"
    subprocess.run([REAL_CXX, "-shared", "-fPIC", source, "-o", library], check=True)
    assert foreign_torch_symbols(library) == {newer, "_ZN2at9get_thingEi"}


def test_a_cuda_library_uses_nothing_but_the_stable_shim(tmp_path: Path) -> None:
    if not shutil.which("nvcc"):
        pytest.skip("needs nvcc")
    folder = write_op(tmp_path / "op", cpp=None, cu="kernel")
    (library,) = compile.build([planned(folder, "cuda", "9.0")])
    assert foreign_torch_symbols(library.path) == set()
    assert any(s.startswith("aoti_torch_") for s in undefined_symbols(library.path))
    verdict = audit.judge([library.path])
    assert verdict.is_as_wide_as_torch, verdict.why
