# SPDX-License-Identifier: Apache-2.0
"""Runs all requested workloads with a progress bar, and passes on their rows."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console

from opforge import history
from opforge.bench import clock as clocks
from opforge.bench import machine, shapes, stats
from opforge.bench.contenders import check_names
from opforge.bench.inputs import DeviceMake
from opforge.bench.measure import Say, Workload, measure
from opforge.bench.results import OURS, Results, Row, best_other
from opforge.bench.rounds import Task, measure_all
from opforge.errors import OpforgeError
from opforge.op import Op
from opforge.terminal.progress import bar

FORWARD, BACKWARD = "forward", "backward"
# Limit in seconds for the turns of one op. Compiling and checking are not included.
_SECONDS = 25.0
# Relative uncertainty of the medians at which to stop. A shared CPU does not get much below.
_UNCERTAINTY = {"cuda": 0.005, "cpu": 0.02}
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}


@dataclass(frozen=True)
class Options:
    """What to measure. None means the defaults of the device."""

    device: str
    shapes: Sequence[tuple[int, ...]] | None = None
    dtypes: Sequence[str] = ()  # names; "all" means all dtypes of the op
    backward: bool = False
    peers: Sequence[str] | None = None
    commit: str | None = None
    jobs: int = 1  # number of workloads that are prepared at a time

    def workloads(self, op: Op) -> Iterator[Workload]:
        """All workloads of an op."""
        passes = (FORWARD, BACKWARD) if self.backward else (FORWARD,)
        for dtype in self._dtypes(op):
            for shape in self.shapes or shapes.default(op, self.device):
                make = DeviceMake(
                    dtype, "meta"
                )  # enough to find the record's variants and check the shape
                for variant, case in shapes.arguments(op, make, shape).items():
                    shapes.check(op, case, shape)
                    for direction in passes:
                        yield Workload(op, direction, variant, dtype, shape)

    def _dtypes(self, op: Op) -> Sequence[torch.dtype]:
        if list(self.dtypes) == ["all"]:
            return op.dtypes
        if not self.dtypes:
            usual = torch.bfloat16 if self.device == "cuda" else torch.float32
            return [usual if usual in op.dtypes else op.dtypes[0]]
        return [dtype_of(op, name) for name in self.dtypes]


def dtype_of(op: Op, name: str) -> torch.dtype:
    """A dtype by its full or short name. Raises if the op does not support it."""
    dtype = getattr(torch, _SHORT.get(name, name), None)
    if dtype not in op.dtypes:
        known = ", ".join(str(d).removeprefix("torch.") for d in op.dtypes)
        raise OpforgeError(f"{op.name} does not take dtype {name!r}; it takes {known}")
    assert isinstance(dtype, torch.dtype)
    return dtype


def choose_device(wish: str | None) -> str:
    """The requested device, or by default ``cuda`` if there is a GPU. Raises if it is missing."""
    if wish is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wish not in ("cpu", "cuda"):
        raise OpforgeError(f"--on {wish}: choose cpu or cuda")
    if wish == "cuda" and not torch.cuda.is_available():
        raise OpforgeError(
            "--on cuda: torch finds no CUDA GPU; run `opforge doctor` for the reason"
        )
    return wish


def device_name(device: str) -> str:
    """The name of the device in results."""
    return torch.cuda.get_device_name() if device == "cuda" else "the CPU"


def run(
    ops: Sequence[Op],
    options: Options,
    after_each: Callable[[Results], None] = lambda results: None,
    quiet: bool = False,
) -> Results:
    """Measure all workloads. ``after_each`` gets the rows of each when it is done."""
    tasks = [task for op in ops for task in _tasks(op, options)]
    check_names(ops, options.peers)
    run_id = machine.run_id()
    method = clocks.KINDS[options.device].method
    facts = machine.provenance(options.device, method, options.commit)
    if options.jobs > 1:
        facts["jobs"] = options.jobs
    results = Results([], {run_id: facts})
    console = Console(stderr=True)
    with bar("timing", console, quiet) as progress:
        task = progress.add_task("", total=len(tasks))
        said: set[str] = set()

        def say(text: str) -> None:
            progress.update(task, description=text)
            if (
                not quiet and not console.is_terminal and text not in said
            ):  # print each text once, though turns repeat it
                said.add(text)
                print(f"opforge: timing {text}", file=sys.stderr, flush=True)

        what = options.device, options.peers, run_id, say
        many = options.jobs > 1
        found = measure_all(tasks, options.jobs, *what) if many else _one_by_one(tasks, *what)
        with contextlib.closing(found):  # closing it ends the workers
            for rows in found:
                new = Results(rows, {run_id: facts})
                results.add(new)
                after_each(new)
                progress.advance(task)
    for op in ops:
        history.keep(op, "bench", _summary(results.of(op.name), device_name(options.device)))
    return results


def _summary(results: Results, device: str) -> dict[str, Any]:
    """What ``opforge next`` says of the benchmark of an op."""
    ours = [r for r in results.rows if r.implementation == OURS]
    timed = [r for r in ours if r.us and not r.error]
    best = {r.workload: best_other(results.workloads()[r.workload].values()) for r in timed}
    speeds = [(best[r.workload], r) for r in timed]
    return {
        "device": device,
        "workloads": len(ours),
        "errors": len([r for r in ours if r.error]),
        "shares": [r.share for r in timed if r.share is not None],
        "speeds": [other.us / r.us for other, r in speeds if other and other.us and r.us],
    }


def _tasks(op: Op, options: Options) -> list[Task]:
    """The workloads of an op, which share its time limit."""
    works = list(options.workloads(op))
    seconds = min(2.0, max(0.3, _SECONDS / max(len(works), 1)))
    patience = stats.Patience(seconds=seconds, uncertainty=_UNCERTAINTY[options.device])
    return [(work, patience) for work in works]


def _one_by_one(
    tasks: Sequence[Task], device: str, wanted: Sequence[str] | None, run_id: str, say: Say
) -> Generator[list[Row], None, None]:
    """The rows of each workload, measured in this process."""
    clock = clocks.make_clock(device)
    for work, patience in tasks:

        def say_who(name: str, title: str = work.title) -> None:
            say(f"{title}: {name}")

        yield measure(work, clock, wanted, patience, run_id, say_who)
