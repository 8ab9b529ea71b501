# SPDX-License-Identifier: Apache-2.0
"""Loads benchmark results and check reports from files and folders."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from opforge.bench.results import Results, ResultsError, is_number, read
from opforge.check.results import Report, from_json
from opforge.errors import OpforgeError

USUAL = Path("benchmarks/results")
_HOW = (
    "make some with `opforge bench --json benchmarks/results/<gpu>` "
    "(and with `opforge check --json FILE`), then name them: `opforge report FILE…`"
)


def load(paths: Sequence[Path]) -> tuple[Results, list[Report]]:
    """Load the given files, or benchmarks/results by default.

    If two files have the same row, the later file counts. For checks, the later check counts.
    """
    if not paths and not USUAL.is_dir():
        raise OpforgeError(f"there are no results: no folder {USUAL} here; {_HOW}")
    results, reports = Results(), list[Report]()
    for file in _files(paths or [USUAL]):
        data = _content(file)
        if isinstance(data, dict) and "ops" in data and "facts" in data:
            reports.append(_report(file, data))
        else:
            results.add(read(file))
    _must_be_one_machine(results)
    return results, sorted(reports, key=lambda r: str(r.facts.get("time", "")))


def machine(run: dict[str, Any]) -> str:
    """The GPU or CPU on which a run was measured."""
    for key in ("gpu", "cpu"):
        name = run.get(key)
        if name and name != "none":
            return str(name)
    return "an unknown machine"


def _files(paths: Iterable[Path]) -> list[Path]:
    found: dict[Path, Path] = {}  # a file that is named twice counts once
    for path in paths:
        files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        if not files:
            raise ResultsError(f"{path} has no results (*.json); {_HOW}")
        found.update({file.resolve(): file for file in files})
    return list(found.values())


def _content(file: Path) -> Any:
    """The JSON of a file, or None if it cannot be parsed. The results reader then says why."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def _report(file: Path, data: dict[str, Any]) -> Report:
    try:
        report = from_json(data)
        texts = [o.op for o in report.ops] + [r.text for o in report.ops for r in o.results]
        if not all(isinstance(t, str) for t in texts) or not isinstance(report.facts, dict):
            raise TypeError("a field that must be text is not")
        for result in (r for o in report.ops for r in o.results):
            for errors in result.errors.values():
                if not all(is_number(e) for e in errors.values()):
                    raise TypeError(f"an error of {result.row} is not a number")
    except (KeyError, TypeError, AttributeError) as error:
        raise ResultsError(
            f"{file} looks like a report of `opforge check --json` but is damaged or from another "
            f"version ({type(error).__name__}: {error}); run the check again"
        ) from None
    return report


def _must_be_one_machine(results: Results) -> None:
    """Raise if results come from several machines, whose times cannot be compared."""
    found = sorted({machine(run) for run in results.runs.values()})
    if len(found) > 1:
        raise OpforgeError(
            f"the results come from several machines ({', '.join(found)}), whose times cannot be "
            f"compared; make one page for each, as in `opforge report {USUAL}/<gpu>`"
        )
