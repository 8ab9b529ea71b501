# SPDX-License-Identifier: Apache-2.0
"""Runs the rows of ops in worker processes, and goes on when one of them crashes or hangs."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import queue
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from rich.console import Console

import opforge
from opforge import settings, sim
from opforge.build import compile, load
from opforge.build.plan import has_sources, plan, plan_simulator
from opforge.check import row as rows
from opforge.check.place import PLACES, Place, default_places
from opforge.check.results import FAILED, NOT_RUN, OpReport, Report, Result
from opforge.check.situation import where
from opforge.errors import BuildError, KernelUnavailable, OpforgeError, ToolchainError
from opforge.op import Op
from opforge.processes import ending, kill_group
from opforge.progress import bar

_SECONDS = {False: 300.0, True: 900.0}  # that a row may take, quick and full
_SANITIZER_SECONDS = 2400.0


@dataclass(frozen=True)
class Options:
    """What to run: the same for every op."""

    on: tuple[str, ...] = ()
    full: bool = False
    sanitize: bool = False
    seed: int = 0
    only: tuple[str, ...] = ()
    seconds: float = 0.0  # that a row may take; 0 for the default

    def __post_init__(self) -> None:
        for place in self.on:
            if place not in PLACES:
                raise OpforgeError(f"there is no place {place!r}; use some of {','.join(PLACES)}")
        if not 0 <= self.seed < 2**31:
            raise OpforgeError(f"seed {self.seed} must be from 0 to 2^31 - 1")

    @property
    def places(self) -> tuple[str, ...]:
        """Where to check: as asked, else where this machine can."""
        return tuple(dict.fromkeys(self.on)) or tuple(default_places())

    def todo(self, op: Op) -> list[tuple[str, str]]:
        """Every row at every place its letters name, place by place.

        Unless places are asked for: an op without CUDA source has no rows but the CPU's, and rows
        that need a GPU are among them without one, too, to be told as not run.
        """
        chosen = rows.find(list(self.only))
        if not self.on and not has_sources(op, "cuda") and op.composed is None:
            return [(r.name, "cpu") for r in chosen if rows.applies_at(r, "cpu")]
        todo = [(r.name, p) for p in self.places for r in chosen if rows.applies_at(r, p)]
        if not self.on:
            todo += [
                (r.name, "cuda") for r in chosen if r.letters == "g" and "cuda" not in self.places
            ]
        return todo


class Impossible(OpforgeError):
    """An op that cannot be checked at all."""


class Worker:
    """A process that runs rows of one op, started when needed and again after a crash."""

    def __init__(self, op: Op, options: Options) -> None:
        self._options = options
        usual = _SANITIZER_SECONDS if options.sanitize else _SECONDS[options.full]
        self._limit = options.seconds or usual
        self._job = {
            "op": where(op),
            "seed": options.seed,
            "full": options.full,
            "sanitize": options.sanitize,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._reading = -1
        self._buffer = b""
        self._errors: IO[bytes] | None = None
        self.kernels: dict[str, str] = {}  # place -> what ran there

    def run(self, row: str, place: str) -> Result:
        """Run one row; whatever happens to the process is that row's result."""
        if self._process is None:
            self._start()
        began = time.monotonic()
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{json.dumps([row, place])}\n".encode())
            self._process.stdin.flush()
        message = self._message()
        if message is not None:
            result = Result(**message["result"])
            if message["kernel"]:
                self.kernels[place] = message["kernel"]
            if message["last"]:
                self._end()
        else:
            how, last = self._end()
            text = f"the process that ran the kernel is gone: {how}"
            text += f"\nits last words: {last[-300:]}" if last else ""
            result = Result(row, place, FAILED, time.monotonic() - began, text)
        if result.outcome == FAILED:
            options = f"on=[{place!r}], only=[{row!r}], seed={self._options.seed}"
            options += ", full=True" if self._options.full else ""
            whole = f"opforge.testing.check({self._job['op']!r}, {options})"
            if result.script:
                result.script += f"\n# The whole row, if it takes more than one call:\n# {whole}"
            else:
                result.script = f"import opforge.testing\n\n{whole}"
        return result

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._end()

    def kill(self) -> None:
        """End the process at once, whatever it is doing; from any thread."""
        process = self._process
        if process is not None:
            kill_group(process)

    def _start(self) -> None:
        self._reading, writing = os.pipe()
        command = [
            sys.executable,
            "-m",
            "opforge.check.worker",
            json.dumps(self._job),
            str(writing),
        ]
        # Threads that wait spinning make small tensors ten times slower where others want cores.
        environment = {
            "OMP_WAIT_POLICY": "passive",
            "KINETO_LOG_LEVEL": "99",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(Path(tempfile.gettempdir()) / "hypothesis"),
            **os.environ,
        }
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            pass_fds=(writing,),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,
        )
        os.close(writing)
        self._buffer = b""
        message = self._message()
        if message is None or "impossible" in message:
            how, last = self._end()
            text = f"the process that checks it ended at once: {how}\n{last[-2000:]}"
            raise Impossible(text if message is None else message["impossible"])

    def _message(self) -> Any:
        """The process's next message, or None if it ends or takes too long."""
        deadline = time.monotonic() + self._limit
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._reading], [], [], left)[0]:
                return None
            got = os.read(self._reading, 65536)
            if not got:
                return None
            self._buffer += got
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def _end(self) -> tuple[str, str]:
        """End the process, if it has not ended; how it ended, and what it said last."""
        process, self._process = self._process, None
        assert process is not None
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        hung = False
        try:
            process.wait(10)  # without work it ends by itself
        except subprocess.TimeoutExpired:
            hung = True
        kill_group(process)  # and what a row has started
        process.wait()
        os.close(self._reading)
        assert self._errors is not None
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        self._errors.close()
        how = f"it did not answer for {self._limit:.0f} s" if hung else ending(process.returncode)
        return how, lines[-1] if lines else ""


def check(ops: list[Op], options: Options, quiet: bool = False) -> Report:
    """Check ops, one after the other, with a progress bar where somebody watches."""
    count = sum(len(options.todo(op)) for op in ops)
    if not count:
        asked = ", ".join(options.only)
        raise OpforgeError(f"row {asked} is not run on {', '.join(options.places)}")
    report = Report([], facts(options.full))
    with bar("checking", Console(stderr=True), quiet) as progress:
        task = progress.add_task("", total=count)
        for op in ops:
            one = OpReport(op.name, where(op))
            report.ops.append(one)
            try:
                build(op, options)
            except BuildError as error:
                one.impossible = str(error)
                continue
            for result in results(op, options, one):
                progress.update(task, description=f"{op.name}: {result.row} on {result.place}")
                progress.advance(task)
    return report


def facts(full: bool) -> dict[str, str]:
    """What the check ran with, and how much of it."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "check": "full" if full else "quick",
        "opforge": opforge.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "gpu": gpu,
        "cpu": f"{platform.machine()}, {os.cpu_count()} cores",
        "time": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }


def build(op: Op, options: Options) -> None:
    """Compile everything beforehand: in parallel, and outside of any row's time."""
    if not settings.jit_enabled():
        return
    plans = []
    # What cannot be planned or found, for want of a compiler, is for the rows to say.
    for target in options.places:
        if Place(target).missing(op):
            continue
        with contextlib.suppress(ToolchainError, KernelUnavailable):
            if target != "sim":
                if has_sources(op, target) and load.find_ready(op, target) is None:
                    plans.append(plan(op, target))
            else:
                targets = [sim.TARGETS[mode] for mode in ("plain", "race")]
                plans += [plan(op, t) for t in targets if has_sources(op, t)]
                plans.append(plan_simulator())
    compile.build(plans)


def results(op: Op, options: Options, report: OpReport) -> Iterator[Result]:
    """Run one op's rows, adding what comes of them to ``report``."""
    todo = options.todo(op)
    done: queue.SimpleQueue[Result | Exception | None] = queue.SimpleQueue()
    stop = threading.Event()

    def follow(worker: Worker, rows_left: deque[tuple[str, str]]) -> None:
        try:
            while rows_left and not stop.is_set():
                try:
                    row, place = rows_left.popleft()
                except IndexError:  # the other worker took the last one
                    break
                done.put(worker.run(row, place))
        except Exception as error:
            done.put(error)
        finally:
            report.kernels |= worker.kernels
            worker.close()
            done.put(None)

    missing = {p: Place(p).missing(op) for p in dict.fromkeys(p for _, p in todo)}
    for row, place in todo:
        if reason := missing[place]:
            done.put(Result(row, place, NOT_RUN, text=reason))
    left = [(r, p) for r, p in todo if not missing[p]]
    # A GPU's rows come one by one: they are about time and memory. The others share the cores.
    host = deque(x for x in left if x[1] != "cuda")
    lanes = [host] * min(os.cpu_count() or 1, 2, -(-len(host) // 8))
    lanes += [deque(x for x in left if x[1] == "cuda")]
    workers = [Worker(op, options) for _ in lanes]
    threads = [
        threading.Thread(target=follow, args=pair) for pair in zip(workers, lanes, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        running = len(threads)
        while running:
            result = done.get()
            if isinstance(result, Result):
                report.results.append(result)
                yield result
            elif isinstance(result, Impossible):
                report.impossible = str(result)
                stop.set()
            elif result is None:
                running -= 1
            else:
                raise result
    except BaseException:  # Ctrl-C, say: no row is worth waiting for
        stop.set()
        for worker in workers:
            worker.kill()
        raise
    finally:
        for thread in threads:
            thread.join()
    report.results.sort(key=lambda r: todo.index((r.row, r.place)))
    report.blame()
