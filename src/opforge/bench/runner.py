# SPDX-License-Identifier: Apache-2.0
"""Runs every workload that was asked for, with a progress bar, and keeps what was measured."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console

from opforge.bench import clock as clocks
from opforge.bench import machine, shapes, stats
from opforge.bench.contenders import check_names
from opforge.bench.inputs import DeviceMake
from opforge.bench.measure import Say, Workload, measure
from opforge.bench.results import Results, Row
from opforge.bench.rounds import Task, measure_all
from opforge.errors import OpforgeError
from opforge.op import Op
from opforge.terminal.progress import bar

FORWARD, BACKWARD = "forward", "backward"
# Seconds that the turns of one op may take; compiling and checking come on top.
_SECONDS = 25.0
# Of every median, relative: where to stop. A CPU shared with others does not get much below.
_UNCERTAINTY = {"cuda": 0.005, "cpu": 0.02}
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}


@dataclass(frozen=True)
class Options:
    """What to measure; None stands for a device's defaults."""

    device: str
    shapes: Sequence[tuple[int, ...]] | None = None
    dtypes: Sequence[str] = ()  # names; "all" is all that the op takes
    backward: bool = False
    peers: Sequence[str] | None = None
    commit: str | None = None
    jobs: int = 1  # workloads that are prepared at a time

    def workloads(self, op: Op) -> Iterator[Workload]:
        """Everything to be timed of one op."""
        passes = (FORWARD, BACKWARD) if self.backward else (FORWARD,)
        for dtype in self._dtypes(op):
            for shape in self.shapes or shapes.default(op, self.device):
                make = DeviceMake(dtype, "meta")  # enough to ask what a record has and takes
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
    """A dtype by its name, or the short one; one that the op lacks is an error."""
    dtype = getattr(torch, _SHORT.get(name, name), None)
    if dtype not in op.dtypes:
        known = ", ".join(str(d).removeprefix("torch.") for d in op.dtypes)
        raise OpforgeError(f"{op.name} does not take dtype {name!r}; it takes {known}")
    assert isinstance(dtype, torch.dtype)
    return dtype


def choose_device(wish: str | None) -> str:
    """``cuda`` where there is a GPU, else ``cpu``; a wish that cannot be met is an error."""
    if wish is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wish not in ("cpu", "cuda"):
        raise OpforgeError(f"--on {wish}: ops are timed on cpu or cuda")
    if wish == "cuda" and not torch.cuda.is_available():
        raise OpforgeError("--on cuda: there is no CUDA GPU here that torch can use")
    return wish


def device_name(device: str) -> str:
    """What results are of."""
    return torch.cuda.get_device_name() if device == "cuda" else "the CPU"


def run(
    ops: Sequence[Op],
    options: Options,
    after_each: Callable[[Results], None] = lambda results: None,
    quiet: bool = False,
) -> Results:
    """Measure; ``after_each`` gets the rows of every workload as they come."""
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
            if not quiet and not console.is_terminal and text not in said:  # turns say it again
                said.add(text)
                print(f"opforge: timing {text}", file=sys.stderr, flush=True)

        what = options.device, options.peers, run_id, say
        many = options.jobs > 1
        found = measure_all(tasks, options.jobs, *what) if many else _one_by_one(tasks, *what)
        with contextlib.closing(found):  # workers end with it
            for rows in found:
                new = Results(rows, {run_id: facts})
                results.add(new)
                after_each(new)
                progress.advance(task)
    return results


def _tasks(op: Op, options: Options) -> list[Task]:
    """The workloads of an op, which share its time."""
    works = list(options.workloads(op))
    seconds = min(2.0, max(0.3, _SECONDS / max(len(works), 1)))
    patience = stats.Patience(seconds=seconds, uncertainty=_UNCERTAINTY[options.device])
    return [(work, patience) for work in works]


def _one_by_one(
    tasks: Sequence[Task], device: str, wanted: Sequence[str] | None, run_id: str, say: Say
) -> Generator[list[Row], None, None]:
    """The rows of every workload, in this process."""
    clock = clocks.make_clock(device)
    for work, patience in tasks:

        def say_who(name: str, title: str = work.title) -> None:
            say(f"{title}: {name}")

        yield measure(work, clock, wanted, patience, run_id, say_who)
