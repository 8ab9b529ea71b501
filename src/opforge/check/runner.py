# SPDX-License-Identifier: Apache-2.0
"""Checks ops: builds them, runs their rows in worker processes, puts the results in order."""

from __future__ import annotations

import contextlib
import os
import platform
import time

import torch
from rich.console import Console

import opforge
from opforge import settings, sim
from opforge.build import compile, load
from opforge.build.plan import Plan, has_sources, plan, plan_simulator
from opforge.check import lanes
from opforge.check import row as rows
from opforge.check.lanes import Task
from opforge.check.options import Options
from opforge.check.place import PLACES, Place
from opforge.check.results import NO_MEMORY, NOT_RUN, OpReport, Report, Result
from opforge.check.situation import where
from opforge.errors import BuildError, KernelUnavailable, OpforgeError, ToolchainError
from opforge.op import Op
from opforge.progress import bar


def check(ops: list[Op], options: Options, quiet: bool = False) -> Report:
    """Check ops, with a progress bar where somebody watches."""
    if not any(options.todo(op) for op in ops):
        asked = ", ".join(options.only)
        raise OpforgeError(f"row {asked} is not run on {', '.join(options.places)}")
    broken = _build_all(ops, options)
    report = Report([], facts(options.full))
    tasks: list[Task] = []
    for op in ops:
        one = OpReport(op.name, where(op), impossible=broken.get(op, ""))
        report.ops.append(one)
        if not one.impossible:
            tasks += _tasks(op, options, one)
    with bar("checking", Console(stderr=True), quiet) as progress:
        shown = progress.add_task("", total=len(tasks))

        def keep(task: Task, result: Result) -> None:
            task.report.results.append(result)
            what = f"{task.op.name}: {task.row} on {task.place}"
            progress.update(shown, description=what, advance=1)

        _run(tasks, options, keep)
    for op, one in zip(ops, report.ops, strict=True):
        order = options.todo(op)
        one.results.sort(key=lambda r: order.index((r.row, r.place)))
        one.kernels = {p: one.kernels[p] for p in PLACES if p in one.kernels}
        one.blame()
    return report


def _tasks(op: Op, options: Options, report: OpReport) -> list[Task]:
    """The op's rows that can be run here; of the others ``report`` is told."""
    found = []
    missing = {p: Place(p).missing(op) for p in PLACES}
    for row, place in options.todo(op):
        if reason := missing[place]:
            report.results.append(Result(row, place, NOT_RUN, text=reason))
        else:
            found.append(Task(op, report, row, place))
    return found


def _run(tasks: list[Task], options: Options, keep: lanes.Keep) -> None:
    """Run rows: as many at a time as asked for, and then those that must be alone."""
    many = options.jobs > 1  # else a GPU's rows come one by one anyhow
    apart = {r.name for r in rows.all_rows() if r.alone and many}
    alone = [t for t in tasks if t.row in apart]
    gpu = [t for t in tasks if t.row not in apart and t.place == "cuda"]
    host = [t for t in tasks if t.row not in apart and t.place != "cuda"]

    def sort(task: Task, result: Result) -> None:
        if many and result.text.startswith(NO_MEMORY):  # others may have had it
            alone.append(task)
        else:
            keep(task, result)

    # Unasked, a second process is started where it has rows enough to be worth it.
    host_lanes = options.jobs if many else min(os.cpu_count() or 1, 2, -(-len(host) // 8))
    lanes.run([(host, host_lanes), (gpu, options.jobs)], options, sort)
    lanes.run([(alone, 1)], options, keep)


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


def _build_all(ops: list[Op], options: Options) -> dict[Op, str]:
    """Compile all ops at once, which keeps the cores busy; if that fails, one by one tells whose.

    Returns the compiler's words for each op that does not compile.
    """
    try:
        build(ops, options)
    except BuildError as error:
        if len(ops) == 1:
            return {ops[0]: str(error)}
        return {k: v for op in ops for k, v in _build_all([op], options).items()}
    return {}


def build(ops: list[Op], options: Options) -> None:
    """Compile everything beforehand: in parallel, and outside of any row's time."""
    if settings.jit_enabled():
        compile.build([p for op in ops for p in _plans(op, options)])


def _plans(op: Op, options: Options) -> list[Plan]:
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
    return plans
