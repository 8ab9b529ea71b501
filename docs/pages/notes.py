# SPDX-License-Identifier: Apache-2.0
"""What an op's folder says about itself in ``docs.toml``. The file and every key are optional.

- ``summary``: one sentence; by default the first line of the docstring of ``op.py``.
- ``kind``: the group in the index.
- ``use``: when to use the op; ``example``: code that a test runs.
- ``[[loss]]``: ``why`` the op loses a workload. ``passes`` says in which passes ("backward", or
  "backward, plain"), ``when`` under which condition; without them it holds everywhere. The first
  loss that applies counts.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import Any

import tomllib

from opforge.discover import function_of
from opforge.op import Op
from opforge.report.series import Contest

from .data import largest

OTHER_KIND = "Other"


@dataclass(frozen=True)
class Loss:
    """A reason, and where it holds."""

    why: str
    passes: tuple[str, ...] = ()
    when: str = "True"

    def applies(self, contest: Contest, op: Op) -> bool:
        """Whether this is the reason for a lost workload."""
        row = contest.ours
        if self.passes and not {row.direction, row.title.removeprefix(f"{row.op} ")} & set(
            self.passes
        ):
            return False
        known = {
            "shape": row.shape,
            "bytes": largest(op, row.variant, row.dtype, row.shape),  # of the largest tensor
            "other": contest.other.implementation if contest.other else "",
        }
        return bool(eval(self.when, {"__builtins__": {}}, known))


@dataclass(frozen=True)
class Notes:
    """The content of a docs.toml."""

    summary: str
    kind: str = OTHER_KIND
    use: str = ""
    example: str = ""
    losses: tuple[Loss, ...] = ()


@functools.cache
def notes(op: Op) -> Notes:
    """What the folder of an op says."""
    assert op.folder is not None
    file = op.folder / "docs.toml"
    found: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    losses = tuple(
        Loss(_one_line(loss["why"]), tuple(loss.get("passes", ())), loss.get("when", "True"))
        for loss in found.pop("loss", [])
    )
    found["use"] = _one_line(found.get("use", ""))
    return Notes(**{"summary": _first_line(op), **found}, losses=losses)


def reason(contest: Contest, op: Op) -> str | None:
    """Why a workload was lost, if the op's folder says so."""
    return next((loss.why for loss in notes(op).losses if loss.applies(contest, op)), None)


def _first_line(op: Op) -> str:
    text = inspect.getdoc(inspect.getmodule(function_of(op))) or ""
    return text.partition("\n")[0].removeprefix(f"{op.name}: ")


def _one_line(text: str) -> str:
    return " ".join(text.split())
