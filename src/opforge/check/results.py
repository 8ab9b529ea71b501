# SPDX-License-Identifier: Apache-2.0
"""What became of each row: passed, failed, not run, or without meaning for the op."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from opforge.check.row import all_rows

PASSED, FAILED, NOT_RUN, NOT_APPLICABLE = "passed", "failed", "not run", "n/a"
NO_MEMORY = "not enough GPU memory"  # how the text of such a row begins


_BASIC = ("own-cases", "gradients")  # nothing but plain calls
_SPECIFIC = (*_BASIC, "dropout")  # names a fault that plain calls meet as well


@dataclass
class Result:
    """One row at one place. ``text`` says why it failed, was not run, or does not apply."""

    row: str
    place: str
    outcome: str
    seconds: float = 0.0
    text: str = ""
    script: str = ""
    cause: str = ""  # the row whose fault this one met, too
    # {"forward": {"max": ulps, "rms": ulps, "torch_max": ulps, "torch_rms": ulps}, ...}
    errors: dict[str, dict[str, float]] = field(default_factory=dict)
    # Of the row coverage: {"share": of the blocks in the op's folder, "missing": [texts], ...}
    coverage: dict[str, Any] = field(default_factory=dict)


@dataclass
class OpReport:
    """All rows of one op."""

    op: str
    folder: str
    results: list[Result] = field(default_factory=list)
    kernels: dict[str, str] = field(default_factory=dict)  # place -> what ran there
    impossible: str = ""  # why the op could not be checked at all

    def blame(self) -> None:
        """Where plain calls are wrong already, other rows meet the same fault: say so."""
        for basic in self.of(FAILED):
            if basic.row not in _BASIC:
                continue
            for other in self.of(FAILED):
                same = other.place == basic.place and _subject(other) == _subject(basic)
                if same and other.row not in _SPECIFIC:
                    other.cause = basic.row

    def of(self, outcome: str) -> list[Result]:
        """The results of one outcome."""
        return [r for r in self.results if r.outcome == outcome]

    def count(self) -> str:
        """``61 passed, 0 failed, 12 not run``."""
        parts = [f"{len(self.of(o))} {o}" for o in (PASSED, FAILED, NOT_RUN)]
        return ", ".join(parts)

    def stars(self) -> tuple[int, int]:
        """Star rows that passed, of those that ran."""
        star = {r.name for r in all_rows() if r.star}
        ran = [r for r in self.results if r.row in star and r.outcome in (PASSED, FAILED)]
        return sum(r.outcome == PASSED for r in ran), len(ran)


def _subject(result: Result) -> str:
    """What a mismatch is about: ``grad_bias of scale_bias_relu``."""
    return result.text.partition(":")[0]


@dataclass
class Report:
    """A whole check."""

    ops: list[OpReport]
    facts: dict[str, str]
    interrupted: bool = False  # by Ctrl-C
    left: int = 0  # rows that were to be run and are not, as it was interrupted

    @property
    def failed(self) -> list[tuple[OpReport, Result]]:
        """Every failure."""
        return [(o, r) for o in self.ops for r in o.of(FAILED)]

    @property
    def exit_code(self) -> int:
        """0 fine, 1 a fault was found, 2 an op could not be checked, or nothing of it was run.

        130 if it was interrupted: as shells say it.
        """
        if self.interrupted:
            return 130
        if self.failed:
            return 1
        ran = all(o.of(PASSED) for o in self.ops)
        return 0 if ran and not any(o.impossible for o in self.ops) else 2

    def as_json(self) -> dict[str, Any]:
        """Everything, for a file."""
        return asdict(self)


def from_json(data: dict[str, Any]) -> Report:
    """What :meth:`Report.as_json` wrote."""
    ops = []
    for entry in data["ops"]:
        results = [Result(**r) for r in entry["results"]]
        ops.append(OpReport(**{**entry, "results": results}))
    return Report(**{**data, "ops": ops})
