# SPDX-License-Identifier: Apache-2.0
"""The lists of ops in the README and in the index of docs, and the README's results."""

from __future__ import annotations

import inspect
import re
from collections import Counter

from opforge.check.place import PLACES
from opforge.check.results import FAILED, NOT_RUN, PASSED, Report
from opforge.discover import function_of
from opforge.op import Op
from opforge.report.series import grouped

from . import mutants, scores
from .data import ROOT, Data
from .notes import OTHER_KIND, notes
from .text import prose, words_only

_WIDTH = 42  # characters of a call; dots replace further arguments


def table_of_ops(data: Data) -> str:
    """A line for each op: its call and what it does."""
    lines = [
        [f"[`{_call(op)}`](ops/{name}.md)", notes(op).summary.rstrip(".")]
        for name, op in data.ops.items()
    ]
    return words_only(["op", "what it computes"], lines)


def _call(op: Op) -> str:
    """``rms_norm(x, weight, residual, …)``."""
    names = list(inspect.signature(function_of(op)).parameters)
    shown = len(names)
    while shown > 1 and len(f"{op.name}({', '.join(names[:shown])}, …)") > _WIDTH:
        shown -= 1
    dots = ["…"] if shown < len(names) else []
    return f"{op.name}({', '.join(names[:shown] + dots)})"


def kinds_of_ops(data: Data) -> str:
    """A line for each kind of op: those that there are."""
    kinds = grouped(data.ops, lambda name: notes(data.ops[name]).kind)
    order = sorted(kinds, key=lambda kind: (kind == OTHER_KIND, kind))
    lines = [
        [kind, ", ".join(f"[`{name}`](docs/ops/{name}.md)" for name in kinds[kind])]
        for kind in order
    ]
    return words_only(["kind", "ops"], lines)


def proof(data: Data) -> str:
    """The results of the check and the simulator, for the README."""
    return prose(
        mutants.sentence(),
        mutants.progress(),
        scores.caught(),
        _wrong_kernels(),
        _passed(data.reports),
    )


def _wrong_kernels() -> str:
    """Counted in the table of docs/simulator.md."""
    page = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    part = page.partition("| wrong kernel |")[2].partition("\n\n")[0]
    other = re.findall(r"^\| \w+ \| .* \| (.*) \|$", part, re.MULTILINE)
    return (
        f"The simulator names the fault in all {len(other)} wrong kernels of "
        "`tests/wrong_kernels`; compute-sanitizer ran on "
        f"{sum(found != 'not run' for found in other)} of them on a GPU and names "
        f"{sum('check' in found for found in other)}."
    )


def _passed(reports: list[Report]) -> str:
    """The outcome of all rows of all ops, place by place."""
    parts = []
    for place in PLACES:
        found = [r for p in reports for op in p.ops for r in op.results if r.place == place]
        count = Counter(r.outcome for r in found)
        if found:
            words = f"{PLACES[place].title} {count[PASSED]} passed, {count[FAILED]} failed"
            parts.append(words + (f", {count[NOT_RUN]} not run" if count[NOT_RUN] else ""))
    return f"Rows of the built-in ops: {'; '.join(parts)}."
