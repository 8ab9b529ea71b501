# SPDX-License-Identifier: Apache-2.0
"""Checks ops: builds them, runs their rows in worker processes and collects the results."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from typing import Any

import torch
from rich.console import Console

import opforge
from opforge import history, settings
from opforge.build import compile, load, targets
from opforge.build.parts import parts_of
from opforge.build.plan import Plan, plan, plan_recorder, plan_simulator
from opforge.build.targets import COVERAGE, has_sources
from opforge.check import lanes
from opforge.check import row as rows
from opforge.check.lanes import Task
from opforge.check.options import Options
from opforge.check.place import PLACES, Place
from opforge.check.results import FAILED, NO_MEMORY, NOT_RUN, PASSED, OpReport, Report, Result
from opforge.discover import where
from opforge.errors import BuildError, KernelUnavailable, OpforgeError, ToolchainError
from opforge.op import Op
from opforge.sim import simulation
from opforge.terminal.progress import bar

_NEED_COVERAGE, _NEED_RACE = ("coverage", "found-cases", "narrowing"), ("sanitizer",)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C was pressed. ``report`` has the finished rows."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.report = report


def check(ops: list[Op], options: Options, quiet: bool = False) -> Report:
    """Check ops and return the report. A terminal shows a progress bar unless ``quiet``.

    On Ctrl-C, raises :class:`Interrupted` with the finished rows.
    """
    if not any(options.todo(op) for op in ops):
        asked = ", ".join(options.only)
        raise OpforgeError(f"row {asked} does not run on {', '.join(options.places)}")
    report = Report([OpReport(op.name, where(op)) for op in ops], facts(options.full))
    try:
        _check(ops, options, report, quiet)
    except KeyboardInterrupt:
        report.interrupted = True
        done = sum(len(one.results) for one in report.ops)
        report.left = sum(len(options.todo(op)) for op in ops) - done
    for op, one in zip(ops, report.ops, strict=True):
        order = options.todo(op)
        one.results.sort(key=lambda r: order.index((r.row, r.place)))
        one.kernels = {p: one.kernels[p] for p in PLACES if p in one.kernels}
        one.blame()
    if report.interrupted:
        raise Interrupted(report)
    if not options.only:  # some rows are no check of the op
        for op, one in zip(ops, report.ops, strict=True):
            history.keep(op, "check", _summary(one, options))
    return report


def _summary(one: OpReport, options: Options) -> dict[str, Any]:
    """What ``opforge next`` says of the check of an op."""
    failed = one.of(FAILED)
    return {
        "count": one.count(),
        "failed": len(failed),
        "first": f"{failed[0].row} on {failed[0].place}" if failed else "",
        "impossible": one.impossible.partition("\n")[0],
        "places": [p for p in PLACES if any(r.place == p for r in one.of(PASSED) + failed)],
        "check": "full" if options.full else "quick",
    }


def _check(ops: list[Op], options: Options, report: Report, quiet: bool) -> None:
    broken = build(ops, options)
    tasks: list[Task] = []
    for op, one in zip(ops, report.ops, strict=True):
        tasks += _tasks(op, options, one, broken.get(op, {}))
    with bar("checking", Console(stderr=True), quiet) as progress:
        shown = progress.add_task("", total=len(tasks))

        def keep(task: Task, result: Result) -> None:
            task.report.results.append(result)
            what = f"{task.op.name}: {task.row} on {task.place}"
            progress.update(shown, description=what, advance=1)

        _run(tasks, options, keep)


def _tasks(op: Op, options: Options, report: OpReport, broken: dict[str, str]) -> list[Task]:
    """The op's rows that can run here. The others are added to ``report`` as not run.

    ``broken`` has the compiler's message for each place where the op does not compile. There, all
    rows fail. An op that does not compile for any place cannot be checked.
    """
    found: list[Task] = []
    missing = {p: Place(p).missing(op) for p in PLACES}
    todo = [(row, place) for row, place in options.todo(op) if missing[place] is None]
    if todo and all(place in broken for _, place in todo):
        report.impossible = "\n".join(broken.values())
        return []
    first: dict[str, str] = {}  # the first row of each place
    for row, place in options.todo(op):
        if reason := missing[place]:
            report.results.append(Result(row, place, NOT_RUN, text=reason))
        elif place in broken:
            cause = first.setdefault(place, row)
            cause = "" if cause == row else cause
            report.results.append(Result(row, place, FAILED, text=broken[place], cause=cause))
        else:
            found.append(Task(op, report, row, place))
    return found


def _run(tasks: list[Task], options: Options, keep: lanes.Keep) -> None:
    """Run rows in parallel as requested, and then the rows that must run alone."""
    many = options.jobs > 1  # otherwise the rows of a GPU run one by one anyway
    apart = {r.name for r in rows.all_rows() if r.alone and many}
    alone = [t for t in tasks if t.row in apart]
    gpu = [t for t in tasks if t.row not in apart and t.place == "cuda"]
    host = [t for t in tasks if t.row not in apart and t.place != "cuda"]

    def sort(task: Task, result: Result) -> None:
        if many and result.text.startswith(NO_MEMORY):  # other rows may have used it
            alone.append(task)
        else:
            keep(task, result)

    # By default, a second process is started if it has enough rows to be worth it.
    host_lanes = options.jobs if many else min(os.cpu_count() or 1, 2, -(-len(host) // 8))
    lanes.run([(host, host_lanes), (gpu, options.jobs)], options, sort)
    if not (options.stop and any(t.report.of(FAILED) for t in tasks)):
        lanes.run([(alone, 1)], options, keep)


def facts(full: bool) -> dict[str, str]:
    """The environment of the check, and whether it was quick or full."""
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


def build(ops: list[Op], options: Options) -> dict[Op, dict[str, str]]:
    """Compile all kernels first, in parallel and outside of the rows' time limits.

    Returns the compiler's message for each op and place that does not compile.
    """
    if not settings.jit_enabled():
        return {}
    plans: dict[tuple[Op, str], list[Plan]] = {}
    for op in ops:
        todo = {row for row, _ in options.todo(op)}
        plans |= {(op, place): _plans(op, place, todo) for place in options.places}
    try:
        compile.build([p for some in plans.values() for p in some])
        return {}
    except BuildError:  # building one by one tells which op it is
        broken: dict[Op, dict[str, str]] = {}
        for (op, place), some in plans.items():
            try:
                compile.build(some)
            except BuildError as error:
                broken.setdefault(op, {})[place] = str(error)
        return broken


def _plans(op: Op, place: str, todo: set[str]) -> list[Plan]:
    plans: list[Plan] = []
    if Place(place).missing(op):
        return plans
    # If something is missing, such as a compiler, the rows report it.
    with contextlib.suppress(ToolchainError, KernelUnavailable):
        if place != "sim":
            if has_sources(op, place):
                names = [p.name for p in parts_of(op, targets.find(place)).all]
                missing = [n for n in names if load.find_ready(op, place, n) is None]
                plans += [plan(op, place, part=n) for n in missing]
        else:
            modes = ("plain", "race") if todo & set(_NEED_RACE) else ("plain",)
            wanted = [simulation.TARGETS[mode] for mode in modes]
            plans += [plan(op, t) for t in wanted if has_sources(op, t)]
            plans.append(plan_simulator())
        if todo & set(_NEED_COVERAGE) and place in COVERAGE and has_sources(op, COVERAGE[place]):
            plans += [plan_recorder(), plan(op, COVERAGE[place])]
    return plans
