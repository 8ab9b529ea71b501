# SPDX-License-Identifier: Apache-2.0
"""The results of rows: passed, failed, not run, or not applicable to the op."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from opforge.check.row import all_rows

PASSED, FAILED, NOT_RUN, NOT_APPLICABLE = "passed", "failed", "not run", "n/a"
NO_MEMORY = "not enough GPU memory"  # the text of such a row begins with this


_BASIC = ("own-cases", "gradients")  # rows of plain calls
_SPECIFIC = (
    *_BASIC,
    "dropout",
)  # these rows name a fault exactly, even if plain calls fail as well


@dataclass
class Result:
    """The result of a row at a place. ``text`` says why it failed, was not run, or is n/a."""

    row: str
    place: str
    outcome: str
    seconds: float = 0.0
    text: str = ""
    script: str = ""
    cause: str = ""  # the row that reports the fault which made this one fail as well
    # {"forward": {"max": ulps, "rms": ulps, "torch_max": ulps, "torch_rms": ulps}, ...}
    errors: dict[str, dict[str, float]] = field(default_factory=dict)
    # From the row coverage: {"share": of the blocks in the op's folder, "missing": [texts], ...}
    coverage: dict[str, Any] = field(default_factory=dict)


@dataclass
class OpReport:
    """The results of all rows of one op."""

    op: str
    folder: str
    results: list[Result] = field(default_factory=list)
    kernels: dict[str, str] = field(default_factory=dict)  # place -> what ran there
    impossible: str = ""  # why the op could not be checked at all

    def blame(self) -> None:
        """If plain calls already fail, mark failures of other rows as caused by the same fault."""
        for basic in self.of(FAILED):
            if basic.row not in _BASIC:
                continue
            for other in self.of(FAILED):
                same = other.place == basic.place and _subject(other) == _subject(basic)
                if same and other.row not in _SPECIFIC:
                    other.cause = basic.row

    def of(self, outcome: str) -> list[Result]:
        """The results with this outcome."""
        return [r for r in self.results if r.outcome == outcome]

    def count(self) -> str:
        """``61 passed, 0 failed, 12 not run``."""
        parts = [f"{len(self.of(o))} {o}" for o in (PASSED, FAILED, NOT_RUN)]
        return ", ".join(parts)

    def stars(self) -> tuple[int, int]:
        """The number of star rows that passed, and of those that ran."""
        star = {r.name for r in all_rows() if r.star}
        ran = [r for r in self.results if r.row in star and r.outcome in (PASSED, FAILED)]
        return sum(r.outcome == PASSED for r in ran), len(ran)


def _subject(result: Result) -> str:
    """The result that a mismatch is about, such as ``grad_bias of scale_bias_relu``."""
    return result.text.partition(":")[0]


@dataclass
class Report:
    """The report of a check: all ops."""

    ops: list[OpReport]
    facts: dict[str, str]
    interrupted: bool = False  # by Ctrl-C
    left: int = 0  # rows that were not run because it was interrupted

    @property
    def failed(self) -> list[tuple[OpReport, Result]]:
        """All failures, each with its op."""
        return [(o, r) for o in self.ops for r in o.of(FAILED)]

    @property
    def exit_code(self) -> int:
        """The exit code of the command.

        0: no row failed. 1: a row failed. 2: an op could not be checked, or none of its rows ran.
        130: interrupted, as shells report it.
        """
        if self.interrupted:
            return 130
        if self.failed:
            return 1
        ran = all(o.of(PASSED) for o in self.ops)
        return 0 if ran and not any(o.impossible for o in self.ops) else 2

    def as_json(self) -> dict[str, Any]:
        """The report as data for a JSON file."""
        return asdict(self)

    def _repr_html_(self) -> str:
        """The report in a notebook."""
        from opforge.report import notebook  # the pages import this module

        return notebook.of_check(self)


def from_json(data: dict[str, Any]) -> Report:
    """The report that :meth:`Report.as_json` wrote."""
    ops = []
    for entry in data["ops"]:
        results = [Result(**r) for r in entry["results"]]
        ops.append(OpReport(**{**entry, "results": results}))
    return Report(**{**data, "ops": ops})
