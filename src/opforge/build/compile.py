# SPDX-License-Identifier: Apache-2.0
"""Runs plans: one ninja build for all of them; then each library is tried and put in the cache."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import ninja
import torch
from rich.console import Console

from opforge.build import cache, narrowing, origins
from opforge.build.generated import HEADER_NAME, SOURCE_NAME
from opforge.build.plan import Plan
from opforge.errors import BuildError, CacheError, OpforgeError
from opforge.terminal.progress import bar

TRIAL_LIMIT = 300.0  # seconds for importing torch and loading one library

_DIAGNOSTIC = re.compile(r"^[^\s:][^:\n]*[:(]\d+\)?.*?\berror\b.*$", re.MULTILINE)
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_NINJA_SAYS = ("[", "ninja:", "FAILED", "cd ")
_STEP = re.compile(r"^\[(\d+)/(\d+)\]")


def build(plans: Sequence[Plan], quiet: bool = False) -> list[cache.Library]:
    """Libraries for ``plans``, from the cache or built now; raises for the first failure."""
    try:
        found = _build({plan.entry: plan for plan in plans}, quiet)
    except OSError as error:
        raise CacheError(f"building in {cache.root()} failed: {error}") from error
    return [found[plan.entry] for plan in plans]


def _build(plans: dict[str, Plan], quiet: bool) -> dict[str, cache.Library]:
    found: dict[str, cache.Library] = {}
    with contextlib.ExitStack() as stack:
        missing: list[tuple[Plan, Path]] = []
        for entry, plan in sorted(plans.items()):  # one order everywhere: no deadlock
            library = cache.lookup(entry)
            if library is None:
                stack.enter_context(cache.lock(entry))
                library = cache.lookup(entry, repair=True)  # somebody built it while we waited?
            if library is None:
                missing.append((plan, stack.enter_context(cache.staging(entry))))
            else:
                found[entry] = library
        tried = [plan for plan, _ in missing if not _why_untried(plan)]
        child = stack.enter_context(_trial_process()) if tried else None
        output = _run(missing, quiet) if missing else ""
        trials = _try_loading([(plan, staged / plan.library) for plan, staged in missing], child)
        for (plan, staged), outcome in zip(missing, trials, strict=True):
            if isinstance(outcome, BuildError):
                raise outcome
            facts = {
                **plan.facts,
                **_narrowing(plan, output),
                "tried": outcome,
                cache.SOURCE_FOLDER: str(plan.folder),
            }
            found[plan.entry] = cache.store(staged, plan.entry, plan.library, facts)
    return found


def job_limit(memory_per_job: int) -> int:
    """MAX_JOBS, else one job per core, or fewer if the free memory does not suffice."""
    if wished := os.environ.get("MAX_JOBS"):
        if not wished.isdecimal() or int(wished) < 1:
            raise BuildError(f"MAX_JOBS={wished!r} is not a positive whole number")
        return int(wished)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError):  # free memory without the page cache, where Linux tells
        match = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        free = int(match[1]) * 1024 if match else free
    with contextlib.suppress(OSError, ValueError):  # a container may have less
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        free = min(free, limit - used)
    return max(1, min(len(os.sched_getaffinity(0)), free // memory_per_job))


def _run(missing: list[tuple[Plan, Path]], quiet: bool) -> str:
    """Build, and return what the compilers said."""
    for plan, _ in missing:
        if plan.warning:
            _warn_once(plan.warning)
    jobs = job_limit(max(plan.memory_per_job for plan, _ in missing))
    # The plans that include the most headers take longest, so they start first.
    missing = sorted(missing, key=lambda one: -len(one[0].ingredients))
    for plan, staged in missing:
        _prepare(plan, staged)
    # ninja's own files live in a staging directory too: if we are killed, they are swept with it.
    scratch = missing[0][1]
    (scratch / "build.ninja").write_bytes(os.fsencode(_ninja_file(missing)))
    output = _ninja(scratch, jobs, [plan for plan, _ in missing], quiet)
    for n, (plan, staged) in enumerate(missing):
        if not (staged / plan.library).exists():
            raise _failure(plan, staged, _failed_steps(n, output))
        for leftover in staged.iterdir():
            if leftover.name != plan.library:
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    return output


@functools.cache
def _warn_once(text: str) -> None:
    print(f"opforge: warning: {text}", file=sys.stderr)


def _prepare(plan: Plan, staged: Path) -> None:
    (staged / HEADER_NAME).write_text(plan.signature)
    (staged / SOURCE_NAME).write_text(plan.registration)
    if plan.stub:
        (staged / "stubs").mkdir()


def _ninja_file(missing: list[tuple[Plan, Path]]) -> str:
    """The ninja file. Paths are absolute; no dependencies are tracked, as builds start clean."""
    lines = ["rule run", "  command = cd $dir && $cmd", "  description = $what", ""]

    def edge(output: str, inputs: list[str], folder: Path, command: str, what: str) -> None:
        lines.append(f"build {output}: run {' '.join(inputs)}")
        # ninja splits nothing in a variable; only $ needs escaping, and spaces are quoted for sh
        for name, value in (("dir", shlex.quote(str(folder))), ("cmd", command), ("what", what)):
            lines.append(f"  {name} = {value.replace('$', '$$')}")

    for n, (plan, staged) in enumerate(missing):
        objects, ready = [], []
        what = " ".join(filter(None, (plan.op, plan.target, plan.part)))
        for i, source in enumerate(plan.sources):
            name = f"{i}.o"
            command = shlex.join([*plan.compile, "-o", name, str(source)])
            edge(f"{n}-{i}", [], staged, command, f"{what} {source.name}")
            objects.append(name)
            ready.append(f"{n}-{i}")
        if plan.registration:
            command = shlex.join([*plan.compile_registration, "-o", "r.o", SOURCE_NAME])
            edge(f"{n}-r", [], staged, command, f"{what} registration")
            objects.append("r.o")
            ready.append(f"{n}-r")
        if plan.stub:
            stub = ["-shared", f"-Wl,-soname,{plan.stub}", "-o", f"stubs/{plan.stub}"]
            command = shlex.join([plan.link[0], *stub, "-x", "c", os.devnull])
            edge(f"{n}-stub", [], staged, command, "stub")
            ready.append(f"{n}-stub")
        # A linker that is killed leaves half a library, so the name appears once it is whole.
        command = shlex.join([plan.link[0], *objects, *plan.link[1:], "-o", "linked"])
        command += f" && mv linked {plan.library}"
        edge(f"{n}-link", ready, staged, command, f"{what} link")
    return "\n".join(lines) + "\n"


def _ninja(scratch: Path, jobs: int, plans: list[Plan], quiet: bool) -> str:
    """Run ninja with a progress display; returns everything it printed."""
    program = Path(ninja.BIN_DIR) / "ninja"
    command = [str(program), "-C", str(scratch), "-j", str(jobs), "-k", "0"]
    environment = {**os.environ, "NINJA_STATUS": "[%f/%t] ", "LC_ALL": "C"}
    what = ", ".join(map(_name, sorted(plans, key=lambda p: p.stem)[:3])) + (
        ", …" if len(plans) > 3 else ""
    )
    console = Console(stderr=True)
    if not quiet and not console.is_terminal:
        print(f"opforge: building {what} …", file=sys.stderr)
    started, lines = time.monotonic(), []
    with bar("building", console, quiet) as progress:
        task = progress.add_task(what, total=None)
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line)
                if match := _STEP.match(line):
                    progress.update(task, completed=int(match[1]), total=int(match[2]))
            process.stdout.close()
            process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if not quiet and process.returncode == 0:
        print(f"opforge: built {what} in {time.monotonic() - started:.1f} s", file=sys.stderr)
    return "".join(lines)


def _name(plan: Plan) -> str:
    """A plan in messages: ``rms_norm (cuda bf16)``."""
    return f"{plan.op} ({' '.join(filter(None, (plan.target, plan.part)))})"


def _narrowing(plan: Plan, output: str) -> dict[str, object]:
    """The narrowing conversions that the compiler reports in a build with coverage."""
    if plan.goal is None or not plan.goal.covers:
        return {}
    step = re.compile(rf"^\[\d+/\d+\] {re.escape(plan.op)} {plan.target} ")
    said = "".join(part for part in _steps(output) if step.match(part))
    return {"narrowing": narrowing.found(said, plan.roots)}


def _steps(output: str) -> list[str]:
    """What ninja printed, step by step."""
    return re.split(r"^(?=FAILED: |\[\d+/\d+\] )", output, flags=re.MULTILINE)


def _failed_steps(n: int, output: str) -> str:
    """What ninja printed for the failed steps of the plan at position ``n``."""
    mine = re.compile(rf"FAILED: (?:\[code=\d+\] )?{n}-")
    return "".join(part for part in _steps(output) if mine.match(part)) or output


def _failure(plan: Plan, staged: Path, output: str) -> OpforgeError:
    """An error with the first diagnostic and the path of the whole log."""
    name = _name(plan)
    output = origins.translate(output, plan.folder)
    if _DISK_FULL.search(output) or shutil.disk_usage(staged).free < 1 << 16:
        return CacheError(
            f"building {name} failed: no space left on device in {staged.parent}, or in "
            f"{tempfile.gettempdir()} for the compiler's temporary files. Free some space, or set "
            "OPFORGE_CACHE_DIR or TMPDIR to another place"
        )
    log = cache.log_path(plan.stem)
    log.write_text(output)
    if missing := _unregistered(output):
        lines = " and ".join(f"OPFORGE_IMPL({schema}, <function>)" for schema in missing)
        sources = " or ".join(source.name for source in plan.sources)
        return BuildError(
            f"{name} registers no kernel for {' and '.join(missing)}; add {lines} to {sources}\n"
            f"full log: {log}"
        )
    found = _DIAGNOSTIC.search(output)
    if found:
        first = found[0].strip()
    else:
        said = [x for x in output.splitlines() if x and not x.startswith(_NINJA_SAYS)]
        errors = [x for x in said if re.search(r"\berror\b", x)]
        first = next(iter(errors + said), "the compiler printed nothing (was it killed?)")
    return BuildError(f"building {name} failed: {first}{_mismatch(plan, output)}\nfull log: {log}")


def _unregistered(output: str) -> list[str]:
    """The schemas whose symbol the linker did not find."""
    told = [x for x in output.splitlines() if re.search(r"undefined|isn't defined|not defined", x)]
    return sorted(set(re.findall(r"opforge_(?:impl|f32|f16|bf16|f64)_(\w+)", "\n".join(told))))


def _mismatch(plan: Plan, output: str) -> str:
    """Where a kernel that disagrees with its schema is written, and its signature."""
    told = re.search(r"opforge: the record's schema .* but `(?:\w+::)*(\w+)` is another", output)
    if told is None:
        return ""
    definition = re.compile(rf"^(?!\s*return\b)[^\n;={{}}]*\s{told[1]}\s*\([^)]*\)", re.MULTILINE)
    for source in plan.sources:
        text = source.read_text(errors="replace")
        if found := definition.search(text):
            line = text.count("\n", 0, found.start()) + 1
            place = origins.translate(f"{source}:{line}", plan.folder)
            return f"\n{place}: it is `{' '.join(found[0].split())}`"
    return ""


# Importing torch takes seconds: it is done while the compilers run.
_TRIAL = """
import json, sys, torch
for line in sys.stdin:
    torch.ops.load_library(json.loads(line))
    print("loaded", flush=True)
"""


@contextlib.contextmanager
def _trial_process() -> Iterator[subprocess.Popen[str]]:
    """A child process that loads the libraries it is told, so that a crash does no harm here."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", _TRIAL]
    process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace"
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _try_loading(
    made: Sequence[tuple[Plan, Path]], child: subprocess.Popen[str] | None
) -> list[str | BuildError]:
    """Load fresh libraries in the child, or say why not; one result per library."""
    outcomes: dict[Path, str | BuildError] = {path: _why_untried(plan) for plan, path in made}
    todo = [(plan, path) for plan, path in made if not outcomes[path]]
    if todo and child is not None:
        loaded, reason = _load_in_child(child, [path for _, path in todo])
        for _, path in todo[:loaded]:
            outcomes[path] = f"loads under torch {torch.__version__}"
        if loaded < len(todo):
            plan, path = todo[loaded]
            outcomes[path] = BuildError(f"{_name(plan)} was built but {reason}")
        if rest := todo[loaded + 1 :]:  # again without the one that crashed
            with _trial_process() as another:
                tried = _try_loading(rest, another)
            outcomes |= {path: outcome for (_, path), outcome in zip(rest, tried, strict=True)}
    return [outcomes[path] for _, path in made]


def _why_untried(plan: Plan) -> str:
    return "" if plan.goal is None else plan.goal.why_untried()


def _load_in_child(child: subprocess.Popen[str], paths: list[Path]) -> tuple[int, str]:
    """How many of the libraries the child can load, and what happens at the next one."""
    lines = "".join(json.dumps(str(path)) + "\n" for path in paths)
    try:
        printed, said = child.communicate(lines, timeout=TRIAL_LIMIT)
    except subprocess.TimeoutExpired:
        child.kill()
        printed, _ = child.communicate()
        return printed.count("loaded"), f"is still loading after {TRIAL_LIMIT:g} s"
    if child.returncode == 0:
        return len(paths), ""
    code = child.returncode
    how = f"signal {-code}" if code < 0 else f"exit status {code}"
    last = (said.strip().splitlines() or ["no message"])[-1]
    return printed.count("loaded"), f"crashes when it is loaded ({how}): {last}"
