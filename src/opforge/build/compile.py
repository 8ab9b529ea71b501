# SPDX-License-Identifier: Apache-2.0
"""Runs plans: one ninja build for all of them, then each library tried and moved into the cache."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import ninja
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from opforge.build import cache
from opforge.build.plan import Plan
from opforge.build.signature import HEADER_NAME
from opforge.errors import BuildError

_DIAGNOSTIC = re.compile(r"^(?P<where>[^\s:][^:\n]*[:(]\d+\)?).*?\b(?:fatal )?error\b.*$", re.MULTILINE)
_STEP = re.compile(r"^\[(\d+)/(\d+)\]")


def build(plans: Sequence[Plan], quiet: bool = False) -> list[cache.Library]:
    """Libraries for ``plans``, from the cache or built now; raises BuildError for the first failure."""
    with contextlib.ExitStack() as stack:
        missing: list[tuple[Plan, Path]] = []
        for plan in sorted(plans, key=lambda p: p.entry):  # one order everywhere: no deadlock
            if cache.lookup(plan.entry) is None:
                stack.enter_context(cache.lock(plan.entry))
                if cache.lookup(plan.entry) is None:  # nobody built it while we waited
                    missing.append((plan, stack.enter_context(cache.staging(plan.entry))))
        if missing:
            _run(missing, quiet)
            for plan, staged in missing:
                facts = {**plan.facts, "tried": _try_loading(plan, staged / plan.library)}
                cache.store(staged, plan.entry, plan.library, facts)
    found = [cache.lookup(plan.entry) for plan in plans]
    return [library for library in found if library is not None]


def job_limit(memory_per_job: int) -> int:
    """MAX_JOBS, else one job per core as far as the free memory goes."""
    if wished := os.environ.get("MAX_JOBS"):
        if not wished.isdigit() or int(wished) < 1:
            raise BuildError(f"MAX_JOBS={wished!r} is not a positive whole number")
        return int(wished)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError):  # free memory without the page cache, where Linux tells
        match = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        free = int(match[1]) * 1024 if match else free
    return max(1, min(len(os.sched_getaffinity(0)), free // memory_per_job))


def _run(missing: list[tuple[Plan, Path]], quiet: bool) -> None:
    for plan, _ in missing:
        if plan.warning:
            print(f"opforge: warning: {plan.warning}", file=sys.stderr)
    jobs = job_limit(max(plan.memory_per_job for plan, _ in missing))
    with tempfile.TemporaryDirectory(prefix=".ninja.", dir=cache.root()) as scratch:
        for plan, staged in missing:
            _prepare(plan, staged)
        (Path(scratch) / "build.ninja").write_text(_ninja_file(missing))
        output = _ninja(Path(scratch), jobs, [plan for plan, _ in missing], quiet)
    for plan, staged in missing:
        if not (staged / plan.library).exists():
            raise _failure(plan, staged, output)
        for leftover in staged.iterdir():
            if leftover.name != plan.library:
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def _prepare(plan: Plan, staged: Path) -> None:
    (staged / HEADER_NAME).write_text(plan.signature)
    if plan.target == "cuda":
        (staged / "stubs").mkdir()


def _ninja_file(missing: list[tuple[Plan, Path]]) -> str:
    """Commands carry absolute paths and need no dependency tracking: every build starts clean."""
    lines = ["rule run", "  command = cd $dir && $cmd", "  description = $what", ""]

    def edge(output: str, inputs: list[str], folder: Path, command: list[str], what: str) -> None:
        lines.append(f"build {output}: run {' '.join(inputs)}")
        # ninja splits nothing in a variable; only $ needs escaping, and spaces are quoted for sh
        for name, value in (("dir", shlex.quote(str(folder))), ("cmd", shlex.join(command)), ("what", what)):
            lines.append(f"  {name} = {value.replace('$', '$$')}")

    for n, (plan, staged) in enumerate(missing):
        objects, ready = [], []
        for i, source in enumerate(plan.sources):
            name = f"{i}.o"
            command = [*plan.compile, "-o", name, str(source)]
            edge(f"{n}-{i}", [], staged, command, f"{plan.op} {plan.target} {source.name}")
            objects.append(name)
            ready.append(f"{n}-{i}")
        if plan.target == "cuda":
            stub = ["-shared", "-Wl,-soname,libtorch_cuda.so", "-o", "stubs/libtorch_cuda.so"]
            edge(f"{n}-stub", [], staged, [plan.link[0], *stub, "-x", "c", os.devnull], "stub")
            ready.append(f"{n}-stub")
        command = [plan.link[0], *objects, *plan.link[1:], "-o", plan.library]
        edge(f"{n}-link", ready, staged, command, f"{plan.op} {plan.target} link")
    return "\n".join(lines) + "\n"


def _ninja(scratch: Path, jobs: int, plans: list[Plan], quiet: bool) -> str:
    """Run ninja with a progress display; returns everything it printed."""
    program = Path(ninja.BIN_DIR) / "ninja"
    command = [str(program), "-C", str(scratch), "-j", str(jobs), "-k", "0"]
    environment = {**os.environ, "NINJA_STATUS": "[%f/%t] ", "LC_ALL": "C"}
    what = ", ".join(f"{p.op} ({p.target})" for p in plans[:3]) + (", …" if len(plans) > 3 else "")
    console = Console(stderr=True)
    started, lines = time.monotonic(), []
    columns = [TextColumn("opforge: building {task.description}"), BarColumn(), MofNCompleteColumn()]
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True,
                  disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", env=environment,
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line)
                if match := _STEP.match(line):
                    progress.update(task, completed=int(match[1]), total=int(match[2]))
            process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if not quiet and process.returncode == 0:
        print(f"opforge: built {what} in {time.monotonic() - started:.1f} s", file=sys.stderr)
    return "".join(lines)


def _failure(plan: Plan, staged: Path, output: str) -> BuildError:
    """The first diagnostic in words, and where the whole log is."""
    name = f"{plan.op} ({plan.target})"
    free = shutil.disk_usage(staged).free
    if "No space left on device" in output or free < 1 << 16:
        return BuildError(
            f"building {name} failed: no space left on device in {staged.parent}. "
            "Free some, or set OPFORGE_CACHE_DIR to another place"
        )
    log = cache.log_path(f"{plan.op}-{plan.target}")
    log.write_text(output)
    ours = re.search(r"opforge: the record's schema .*", output)
    found = _DIAGNOSTIC.search(output)
    if found:
        first = found[0].strip()
    else:
        said = [x for x in output.splitlines() if x and not x.startswith(("[", "ninja:", "FAILED", "cd "))]
        first = said[0] if said else "the compiler printed nothing (was it killed?)"
    detail = _received(output) if ours else ""
    return BuildError(f"building {name} failed: {first}{detail}\nfull log: {log}")


def _received(output: str) -> str:
    """The C++ type a mismatched kernel has, taken from the compiler's own note."""
    match = re.search(r"OpforgeSignature<(.*)>", output)
    return f"\nas the compiler sees it, (from the schema, in C++): {match[1]}" if match else ""


def _try_loading(plan: Plan, library: Path) -> str:
    """Load the library once in a child process: a crash there must not be a crash here."""
    if plan.target == "cuda" and torch.version.cuda is None:
        return "not tried: this torch has no CUDA"
    code = "import sys, torch; torch.ops.load_library(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, str(library)], capture_output=True, text=True)
    if done.returncode != 0:
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
        said = done.stderr.strip().splitlines()
        raise BuildError(
            f"{plan.op} ({plan.target}) was built but crashes when it is loaded ({how}): "
            f"{said[-1] if said else 'no message'}"
        )
    return f"loads under torch {torch.__version__}"
