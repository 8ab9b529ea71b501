# SPDX-License-Identifier: Apache-2.0
"""The build cache under faults: kills, races, damage, full disks, other people's directories."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers import NOBODY, planned, python, stub_cxx, temporary_files, write_op

from opforge import discover
from opforge.build import cache, compile, load
from opforge.errors import CacheError

pytestmark = pytest.mark.usefixtures("cache_dir")

BUILD = """
    import sys
    from helpers import planned
    from pathlib import Path
    from opforge.build import compile
    compile.build([planned(Path(sys.argv[1]))])
"""
PYTHONPATH = [str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
AS_A_TEST = {"PYTHONPATH": os.pathsep.join(filter(None, PYTHONPATH))}


@pytest.fixture
def op_folder(tmp_path: Path) -> Path:
    return write_op(tmp_path / "op")


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)


@pytest.mark.usefixtures("untried")
def test_a_build_after_a_killed_one_succeeds_and_leaves_nothing_behind(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A name of its own: the child and this process must mean the same entry.
    op_folder = write_op(tmp_path / "op", name="killed")
    hang, started = tmp_path / "hang", tmp_path / "started"
    hang.touch()
    step = f'if [ -e "{hang}" ]; then echo $$ > "{started}"; exec sleep 600; fi; touch "$out"'
    stub = stub_cxx(tmp_path / "bin", on_compile=step)
    monkeypatch.setenv("CXX", str(stub.path))
    child = subprocess.Popen(
        [sys.executable, "-c", "\n".join(x.strip() for x in BUILD.splitlines()), str(op_folder)],
        env={**os.environ, **AS_A_TEST},
    )
    wait_for(started)
    time.sleep(0.2)
    child.send_signal(signal.SIGKILL)
    child.wait()
    half_written = list((cache_dir / "libs").iterdir())
    assert len(half_written) == 1
    assert half_written[0].name.startswith(".")

    hang.unlink()
    plan = planned(op_folder)
    (library,) = compile.build([plan])
    # The orphaned compiler: nobody waited for it.
    os.kill(int(started.read_text()), signal.SIGTERM)

    assert cache.lookup(plan.entry) == library
    assert half_written[0].name.startswith(f".{plan.entry}.")
    assert temporary_files(cache_dir) == []


@pytest.mark.usefixtures("untried")
def test_prune_sweeps_what_a_killed_build_left_but_not_a_running_one(
    cache_dir: Path, op_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(stub_cxx(tmp_path / "bin").path))
    (library,) = compile.build([planned(op_folder)])
    with cache.lock("alive-cpu-1"), cache.staging("alive-cpu-1") as running:
        dead = cache_dir / "libs" / ".dead-cpu-2.abcdef"
        dead.mkdir()
        removed, _ = cache.prune({library.folder.name})
        assert removed == 1
        assert running.exists()
        assert not dead.exists()
        assert library.path.exists()


def test_sixteen_cold_processes_compile_once_and_all_succeed(
    op_folder: Path, cache_dir: Path, tmp_path: Path
) -> None:
    stub = stub_cxx(tmp_path / "bin", on_compile='sleep 1; touch "$out"')
    # Forked: sixteen imports of torch would take longer than all the rest.
    code = """
        import multiprocessing, sys
        from pathlib import Path
        from helpers import planned
        from opforge.build import compile

        fork = multiprocessing.get_context("fork")
        plan, barrier, results = planned(Path(sys.argv[1])), fork.Barrier(16), fork.Queue()

        def work():
            barrier.wait()
            results.put(compile.build([plan])[0].path)

        processes = [fork.Process(target=work) for _ in range(16)]
        for process in processes: process.start()
        paths = [results.get() for _ in processes]
        for process in processes: process.join()
        assert len(set(paths)) == 1 and paths[0].is_file(), paths
        assert all(process.exitcode == 0 for process in processes)
    """
    python(code, op_folder, environment={**AS_A_TEST, "CXX": str(stub.path)})
    assert stub.compiles == 1
    assert temporary_files(cache_dir) == []


def test_a_hung_lock_holder_is_named_and_then_given_up_on(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cache.SAY_WAITING_AFTER == 10
    monkeypatch.setattr(cache, "SAY_WAITING_AFTER", 0.3)
    monkeypatch.setenv("OPFORGE_LOCK_TIMEOUT", "1")
    code = (
        "import time\nfrom opforge.build import cache\nwith cache.lock('x-cpu-1'): time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_for(cache_dir / "locks" / "x-cpu-1.holder")
        before = time.monotonic()
        with pytest.raises(CacheError) as caught, cache.lock("x-cpu-1"):
            pass
        assert time.monotonic() - before > 0.9
    finally:
        holder.kill()
        holder.wait()
    lock = cache_dir / "locks" / "x-cpu-1.lock"
    assert f"waiting for process {holder.pid} on {lock}" in capsys.readouterr().err
    assert re.search(
        f"gave up after 1 s .*process {holder.pid}, which holds {lock}", str(caught.value)
    )
    assert "OPFORGE_LOCK_TIMEOUT" in str(caught.value)
    with cache.lock("x-cpu-1"):  # the kernel dropped the lock of the killed holder
        pass


def truncate(library: cache.Library) -> None:
    os.truncate(library.path, library.path.stat().st_size // 2)


def flip_a_bit(library: cache.Library) -> None:
    content = bytearray(library.path.read_bytes())
    content[len(content) // 2] ^= 1
    library.path.write_bytes(content)


def lose_the_library(library: cache.Library) -> None:
    library.path.unlink()


def lose_the_manifest(library: cache.Library) -> None:
    (library.folder / "manifest.json").unlink()


def garble_the_manifest(library: cache.Library) -> None:
    (library.folder / "manifest.json").write_text('["not a manifest"]')


def lose_the_digest(library: cache.Library) -> None:
    facts = {k: v for k, v in library.manifest.items() if k != "sha256"}
    (library.folder / "manifest.json").write_text(json.dumps(facts))


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (truncate, "does not match the digest"),
        (flip_a_bit, "does not match the digest"),
        (lose_the_library, "is incomplete"),
        (lose_the_manifest, "is incomplete"),
        (garble_the_manifest, "is incomplete"),
        (lose_the_digest, "is incomplete .*sha256"),
    ],
)
def test_a_damaged_entry_is_built_again(
    damage: Callable[[cache.Library], None],
    said: str,
    op_folder: Path,
    cache_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stub = stub_cxx(tmp_path / "bin")
    monkeypatch.setenv("CXX", str(stub.path))
    op = discover.load_folder(op_folder).op
    library = load.find(op, "cpu")
    assert load.find(op, "cpu") == library
    assert stub.compiles == 1
    capsys.readouterr()

    damage(library)
    rebuilt = load.find(op, "cpu")

    assert stub.compiles == 2
    assert rebuilt.path == library.path
    assert rebuilt.manifest["sha256"] == library.manifest["sha256"]
    assert cache.lookup(library.folder.name) == rebuilt
    assert re.search(f"{said}.*; building it again", capsys.readouterr().err)


@pytest.mark.usefixtures("untried")
def test_looking_at_a_damaged_entry_does_not_remove_it(
    op_folder: Path, cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the lock, it may have been replaced by a good one since it was read."""
    monkeypatch.setenv("CXX", str(stub_cxx(tmp_path / "bin").path))
    (library,) = compile.build([planned(op_folder)])
    truncate(library)
    assert cache.lookup(library.folder.name) is None
    assert load.status(discover.load_folder(op_folder).op, "cpu") == (False, "not built yet")
    assert library.path.exists()


# --- a full disk ----------------------------------------------------------------------------------


def fill(disk: Path) -> None:
    with open(disk / "filler", "wb", 0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize("when", ["before", "compiling", "linking", "storing"])
def test_a_full_disk_is_named_and_nothing_temporary_stays(
    when: str,
    op_folder: Path,
    tmp_path: Path,
    mounted: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = mounted("size=256k")
    big = 'head -c 1000000 /dev/zero > "$out"'
    steps = {
        "compiling": {"on_compile": big},
        # what ld does when a mapped file cannot grow: dies of SIGBUS, leaving half a library
        "linking": {"on_link": f"{big}; echo 'ld terminated with signal 7 [Bus error]'; exit 1"},
    }.get(when, {})
    monkeypatch.setenv("CXX", str(stub_cxx(tmp_path / "bin", **steps).path))
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(disk / "cache"))
    plan = planned(op_folder)
    if when == "before":
        fill(disk)
    if when == "storing":  # the library is there, its manifest does not fit any more
        monkeypatch.setattr(compile, "_why_untried", lambda plan: fill(disk))
    with pytest.raises(CacheError) as caught:
        compile.build([plan])
    assert "no space left on device" in str(caught.value).lower()
    assert str(disk / "cache") in str(caught.value)
    assert temporary_files(disk / "cache") == []
    assert cache.lookup(plan.entry) is None

    if when == "before":
        (disk / "filler").unlink()
        assert compile.build([plan])[0].path.is_file()


def test_with_a_full_disk_the_cpu_op_still_computes(
    op_folder: Path, mounted: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    disk = mounted("size=64k")
    monkeypatch.setenv("CXX", str(stub_cxx(tmp_path / "bin").path))
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(disk / "cache"))
    fill(disk)
    times = discover.load(op_folder)
    with pytest.warns(UserWarning, match=f"PyTorch reference.*{disk}.*No space left on device"):
        assert times(torch.ones(2)).tolist() == [2, 2]


# --- where the cache is ---------------------------------------------------------------------------


@pytest.fixture
def fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the cache goes when the home directory is of no use."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.delenv("OPFORGE_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return temporary / f"opforge-{os.getuid()}"


@pytest.mark.parametrize("options", ["ro", "noexec"])
def test_a_read_only_or_noexec_home_sends_the_cache_elsewhere(
    options: str, fallback: Path, mounted: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(mounted(f"size=64k,{options}", "home")))
    assert cache.root() == fallback
    assert fallback.stat().st_mode & 0o777 == 0o700


def test_a_missing_home_sends_the_cache_elsewhere(
    fallback: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/proc/no-such-home")
    assert cache.root() == fallback


# Root passes every permission check, so these drop to another user once everything is imported.
BECOME = """
    import os, pwd, sys
    from opforge.build import cache
    from opforge.errors import CacheError
    os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
    try:
        print(cache.root())
    except CacheError as error:
        print(error)
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")


@needs_root
def test_a_user_without_any_home_gets_no_directory_called_tilde(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "OPFORGE_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    stranger = 54321  # not in the user database
    with tempfile.TemporaryDirectory() as place:  # tmp_path is hidden from other users
        os.chmod(place, 0o777)
        done = python(BECOME, stranger, environment={"TMPDIR": place}, cwd=place)
        assert done.stdout.strip() == f"{place}/opforge-{stranger}"
        assert os.listdir(place) == [f"opforge-{stranger}"]


def test_no_usable_place_at_all_names_the_variable_to_set(
    fallback: Path, mounted: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(mounted("size=64k,noexec", "home")))
    monkeypatch.setattr(tempfile, "tempdir", str(mounted("size=64k,noexec", "other")))
    with pytest.raises(CacheError, match=r"mounted noexec.*mounted noexec.*Set OPFORGE_CACHE_DIR"):
        cache.root()


@pytest.mark.parametrize(
    ("options", "said"), [("ro", "Read-only file system"), ("noexec", "mounted noexec")]
)
def test_a_chosen_cache_that_cannot_serve_is_an_error(
    options: str, said: str, mounted: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = mounted(f"size=64k,{options}") / "cache"
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(place))
    with pytest.raises(CacheError, match=f"OPFORGE_CACHE_DIR {place}.*{said}"):
        cache.root()


def test_a_relative_cache_directory_works(
    op_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untried: None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CXX", str(stub_cxx(tmp_path / "bin").path))
    monkeypatch.setenv("OPFORGE_CACHE_DIR", "here")
    (library,) = compile.build([planned(op_folder)])
    assert library.path.is_relative_to(tmp_path / "here")
    assert library.path.is_file()


@needs_root
def test_somebody_elses_cache_is_refused(cache_dir: Path) -> None:
    cache_dir.mkdir(mode=0o755)
    os.chown(cache_dir, 54321, 54321)
    with pytest.raises(CacheError, match=f"{cache_dir} belongs to uid 54321, not to .*uid 0"):
        cache.root()


@needs_root
def test_roots_cache_is_refused_to_another_user() -> None:
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        done = python(BECOME, NOBODY, environment={"OPFORGE_CACHE_DIR": place})
        assert f"{place} belongs to uid 0, not to" in done.stdout
        assert "set OPFORGE_CACHE_DIR to a directory of your own" in done.stdout


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_cache_that_others_can_write_is_refused(mode: int, cache_dir: Path) -> None:
    cache_dir.mkdir()
    cache_dir.chmod(mode)
    with pytest.raises(
        CacheError, match=rf"is writable by others \(mode {mode:o}\); run chmod 700"
    ):
        cache.root()


@pytest.mark.parametrize("dangling", [False, True])
def test_a_symbolic_link_as_cache_is_refused(
    dangling: bool, cache_dir: Path, tmp_path: Path
) -> None:
    target = tmp_path / "elsewhere"
    if not dangling:
        target.mkdir(mode=0o700)
    cache_dir.symlink_to(target)
    with pytest.raises(CacheError, match=f"{cache_dir} is a symbolic link"):
        cache.root()
    assert target.exists() != dangling


def test_an_unsafe_default_cache_is_not_used_quietly(
    fallback: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may have made both places before us."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".cache").mkdir()
    for place in (tmp_path / ".cache" / "opforge", fallback):
        place.symlink_to(tmp_path)
    with pytest.raises(CacheError, match=r"symbolic link.*symbolic link.*Set OPFORGE_CACHE_DIR"):
        cache.root()


def test_the_version_memory_survives_being_garbled(
    op_folder: Path, cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", shutil.which("g++") or "g++")
    before = planned(op_folder).key
    for text in ("", "[]", "{"):
        (cache_dir / "toolchain.json").write_text(text)
        assert planned(op_folder).key == before
