# SPDX-License-Identifier: Apache-2.0
"""``opforge check`` and ``opforge bench`` for Python programs, notebooks and pytest.

``check(op)`` runs all rows and raises if one fails. ``bench(op)`` times the op. A notebook shows
what they return as tables. In a test file, one line makes a test of every row::

    test_my_op = opforge.testing.matrix("path/to/my_op")

Rows that cannot run here, or do not apply to the op, are skipped with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opforge import discover
from opforge.check import row as rows
from opforge.check import runner
from opforge.check.options import Options
from opforge.check.place import default_places
from opforge.check.results import Report
from opforge.op import Op
from opforge.terminal.extras import need

if TYPE_CHECKING:
    from opforge.bench.results import Results

__all__ = ["Report", "bench", "check", "matrix"]

AnyOp = str | Path | Op | Callable[..., Any]


class CheckFailed(AssertionError):
    """Rows failed. The message has each failure with its script; ``report`` has all results."""

    def __init__(self, text: str, report: Report) -> None:
        super().__init__(text)
        self.report = report


def check(
    op: AnyOp,
    *,
    on: Sequence[str] = (),
    full: bool = False,
    sanitize: bool = False,
    seed: int = 0,
    only: Sequence[str] = (),
    jobs: int = 1,
) -> Report:
    """Check an op. Raises :class:`CheckFailed` if a row fails or the op cannot be checked.

    Args:
        op: a built-in op's name or function, an op folder, or an :class:`opforge.Op`.
        on: places to check: ``"cpu"``, ``"sim"``, ``"cuda"``. By default the CPU and the GPU, or
            the CPU and the simulator without a GPU.
        full: check all dtypes, more situations, and the slow rows.
        sanitize: also run compute-sanitizer's tools (on a GPU).
        seed: seed of the random values.
        only: names or numbers of rows; by default all.
        jobs: how many rows run at a time, each in its own process.
    """
    need("opforge check", "check")
    options = Options(tuple(on), full, sanitize, seed, tuple(map(str, only)), jobs=jobs)
    report = runner.check([discover.record_of(op)], options, quiet=True)
    (one,) = report.ops
    texts = [one.impossible] if one.impossible else []
    texts += [f"{r.row} on {r.place}: {r.text}\n\n{r.script}" for _, r in report.failed]
    if not texts and report.exit_code:
        texts = [f"no row was run: {', '.join(dict.fromkeys(r.text for r in one.results))}"]
    if texts:
        raise CheckFailed(f"{one.op}: {one.count()}\n\n" + "\n\n".join(texts), report)
    return report


def bench(
    op: AnyOp,
    *,
    on: str | None = None,
    shapes: Sequence[tuple[int, ...]] = (),
    dtypes: Sequence[str] = (),
    backward: bool = False,
    peers: Sequence[str] | None = None,
) -> Results:
    """Time an op against PyTorch, the record's peers and the memory ceiling.

    Args:
        op: as for :func:`check`.
        on: ``"cpu"`` or ``"cuda"``; by default the GPU if there is one.
        shapes: such as ``[(4096, 4096)]``; by default a few for the device.
        dtypes: such as ``["bfloat16"]``, or ``["all"]``; by default bfloat16, on the CPU float32.
        backward: time the backward as well.
        peers: such as ``["eager", "torch.compile"]``; by default all, and none with ``[]``.
    """
    need("opforge bench", "bench")
    from opforge.bench import runner as benchmarks  # check does not need it

    device = benchmarks.choose_device(on)
    options = benchmarks.Options(device, tuple(shapes) or None, dtypes, backward, peers)
    return benchmarks.run([discover.record_of(op)], options)


def matrix(
    op: AnyOp,
    *,
    on: Sequence[str] = (),
    full: bool = False,
    seed: int = 0,
    only: Sequence[str] = (),
) -> Callable[..., None]:
    """A test function for pytest, parametrised over all rows and places of the check.

    ``only`` lists names or numbers of rows; by default all. The other arguments are those of
    :func:`check`.
    """
    import pytest

    need("opforge check", "check")
    todo = [
        (row.name, place)
        for place in on or default_places()
        for row in rows.find(list(map(str, only)))
        if rows.applies_at(row, place)
    ]
    options = Options(tuple(on), full, False, seed, tuple(map(str, only)))

    def test(row: str, place: str, opforge_checks: Any) -> None:
        opforge_checks(op, options, row, place)

    parametrised = pytest.mark.parametrize(
        ("row", "place"), todo, ids=[f"{r}-{p}" for r, p in todo]
    )
    made: Callable[..., None] = parametrised(test)
    return made
