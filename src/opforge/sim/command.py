# SPDX-License-Identifier: Apache-2.0
"""Runs all cases of ops in the simulator, for ``opforge sim``.

The kernels run in a child process (child.py), so that a crash counts as a fault of the op.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from opforge import sim
from opforge.build import toolchain, unsupported
from opforge.discover import where
from opforge.errors import NotSimulated, OpforgeError, RecordError, SimulationError, ToolchainError
from opforge.op import Make, Op
from opforge.sim import runtime, simulation, stats
from opforge.terminal.processes import ending, kill_group
from opforge.terminal.progress import bar
from opforge.truth.cases import Case, check_backward, check_forward, differentiable
from opforge.truth.compare import Mismatch, same_bits

_ASAN_DIED = 99  # exit code of a process that AddressSanitizer has ended


@dataclass
class Outcome:
    """The result for one op."""

    op: str
    runs: int = 0
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)  # the traffic, if requested


Run = Callable[[], tuple[torch.Tensor, ...]]


def runs(op: Op) -> Iterator[tuple[str, Run]]:
    """All cases in all dtypes, forward and backward, as pairs of a name and a function."""
    for dtype in op.dtypes:
        name = str(dtype).removeprefix("torch.")
        make = Make(dtype, requires_grad=dtype.is_floating_point)
        for number, case in enumerate(op.iter_cases(make)):
            what = f"{op.name} {name} case {number}"
            yield what, functools.partial(_forward, op, case)
            if differentiable(case):
                yield f"{what} backward", functools.partial(_backward, op, case)


def _forward(op: Op, case: Case) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        return check_forward(op, case)


def _backward(op: Op, case: Case) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return check_backward(
        op, case, lambda o: torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o)
    )


def simulate(
    op: Op,
    mode: simulation.Mode,
    seed: int | None,
    begin: Callable[[str], None] = lambda what: None,
) -> Outcome:
    """Run all cases in order and once more in a shuffled order, and collect the faults.

    ``begin`` is called with the name of each run before it starts.
    """
    outcome = Outcome(op.name)
    shuffled = 1 if seed is None else seed + 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for what, run in runs(op):
            outcome.runs += 1
            begin(what)
            try:
                with sim.active(mode, seed=seed):
                    first = run()
                if mode != "asan":  # addresses do not depend on the order
                    with sim.active(mode, seed=shuffled):
                        second = run()
                    _compare_bits(first, second)
            except OpforgeError as error:
                if not isinstance(error, SimulationError):
                    raise  # it could not run
                _note(outcome.faults, what, str(error))
            except (Mismatch, RuntimeError, TypeError, ValueError) as fault:
                _note(
                    outcome.faults, what, str(fault)
                )  # for example if the op rejects one of its own cases
    if outcome.runs == 0:
        raise RecordError(f"the record of {op.name} yields no cases; there is nothing to simulate")
    for text in dict.fromkeys(str(w.message) for w in caught):
        if text.startswith(simulation.WARNING):
            outcome.warnings.append(text.removeprefix(simulation.WARNING))
    return outcome


def _compare_bits(first: tuple[torch.Tensor, ...], second: tuple[torch.Tensor, ...]) -> None:
    for a, b in zip(first, second, strict=True):
        same = same_bits(a, b)
        if not bool(same.all()):
            where = tuple((~same).nonzero()[0].tolist())
            raise SimulationError(
                f"order-dependent: {int((~same).sum())} of {a.numel()} elements change when "
                f"threads and blocks run in another order, the first at {where}: "
                f"{a[where].item()!r} or {b[where].item()!r}"
            )


def _note(faults: list[str], what: str, text: str) -> None:
    """Keep each fault once, with the first run that showed it."""
    if all(text != known.split("\n", 1)[1] for known in faults):
        faults.append(f"{what}\n{text}")


def count_traffic(op: Op) -> Outcome:
    """Run the largest case and report the memory traffic of its kernels."""
    outcome = Outcome(op.name, 1)
    try:
        outcome.facts = stats.describe(op)
    except SimulationError as fault:
        outcome.faults.append(str(fault))
    return outcome


def simulate_all(
    ops: list[Op], mode: simulation.Mode, seed: int | None, traffic: bool = False
) -> list[Outcome]:
    """Simulate each op, or count its traffic. A terminal shows a progress bar.

    An op that cannot be simulated has no runs, and the reason among its facts. It is an error if no
    other op was requested.
    """
    left_out: list[Outcome] = []
    simulated: list[Op] = []
    for op in ops:
        try:
            unsupported.check_op(op)
            simulated.append(op)
        except NotSimulated as reason:
            if len(ops) == 1:
                raise
            left_out.append(Outcome(op.name, 0, facts=[f"{op.name}: {reason}"]))
    ops = simulated
    runtime.build(ops, simulation.TARGETS[mode].name)  # shows its own progress bar
    count = len(ops) if traffic else sum(1 for op in ops for _ in runs(op))
    outcomes: list[Outcome] = []
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        environment = {**os.environ, **(_asan_environment(logs) if mode == "asan" else {})}
        progress = stack.enter_context(bar("simulating", Console(stderr=True)))
        task = progress.add_task("", total=count)

        def begin(what: str) -> None:
            progress.update(task, description=what, advance=1)

        while len(outcomes) < len(ops):  # start again for the ops after one that crashed
            left = ops[len(outcomes) :]
            job = {"ops": [where(op) for op in left], "mode": mode, "seed": seed}
            told, code = _in_child({**job, "traffic": traffic}, environment, begin)
            outcomes += told.outcomes
            if len(told.outcomes) < len(left):
                crashed = left[len(told.outcomes)].name
                text = f"{told.what or crashed}\n{_ending(code, logs)}; its later runs are left out"
                outcomes.append(Outcome(crashed, told.runs, [text]))
    return [*outcomes, *left_out]


@dataclass
class _Told:
    """What a child process has reported: outcomes of ops, and the run that it started last."""

    outcomes: list[Outcome] = field(default_factory=list)
    what: str = ""
    runs: int = 0  # runs of the op that has no outcome yet


def _in_child(
    job: dict[str, Any], environment: dict[str, str], begin: Callable[[str], None]
) -> tuple[_Told, int]:
    """Simulate ops in a child process. Returns its reports and its exit code."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "opforge.sim.child", json.dumps(job), str(writing)],
        pass_fds=(writing,),
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C goes to this process, which ends the child
    )
    os.close(writing)
    told = _Told()
    try:
        with os.fdopen(reading) as messages:
            for message in map(json.loads, messages):
                if "impossible" in message:
                    raise OpforgeError(message["impossible"])
                if "outcome" in message:
                    told = _Told([*told.outcomes, Outcome(**message["outcome"])])
                else:
                    told.what, told.runs = message["run"], told.runs + 1
                    begin(told.what)
        return told, process.wait()
    finally:
        kill_group(process)
        process.wait()


def _ending(code: int, logs: Path) -> str:
    if code == _ASAN_DIED:
        return f"out-of-bounds: the simulated process was ended{_last_words(logs)}"
    return f"the process that ran the kernel is gone: {ending(code)}"


def _asan_environment(logs: Path) -> dict[str, str]:
    """For a process with AddressSanitizer, which writes to a folder of logs."""
    cxx = toolchain.find_cxx()
    name = "libasan.so" if cxx.family == "gcc" else "libclang_rt.asan-x86_64.so"
    # The C++ library goes with it: AddressSanitizer looks for its `throw` when it starts.
    libraries = [_library_of(cxx, name), _library_of(cxx, "libstdc++.so.6")]
    options = {
        "detect_leaks": 0,  # Python itself leaks
        "alloc_dealloc_mismatch": 0,
        "halt_on_error": 0,
        "exitcode": _ASAN_DIED,
        "log_path": f"{logs}/asan",
    }
    told = [f"{k}={v}" for k, v in options.items()]
    return {
        "LD_PRELOAD": ":".join([*libraries, os.environ.get("LD_PRELOAD", "")]).rstrip(":"),
        "ASAN_OPTIONS": ":".join([os.environ.get("ASAN_OPTIONS", ""), *told]).lstrip(":"),
    }


def _library_of(cxx: toolchain.Compiler, name: str) -> str:
    found = subprocess.run([cxx.path, f"-print-file-name={name}"], capture_output=True, text=True)
    path = Path(found.stdout.strip())
    if not path.is_absolute():
        raise ToolchainError(f"{cxx.path} has no {name}, which --asan needs; install it")
    return str(path.resolve())


def _last_words(logs: Path) -> str:
    """The summary of AddressSanitizer for an access that ended the process."""
    for log in logs.iterdir():
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith("SUMMARY: AddressSanitizer: "):
                return f": {line.removeprefix('SUMMARY: AddressSanitizer: ')}"
    return ""
