# SPDX-License-Identifier: Apache-2.0
"""Results and reports from files and folders, told apart by what is in them."""

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
    """What is in the files, or in benchmarks/results if none are named.

    Where two have the same row the later file counts; of checks, the later check.
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
    """What a run was measured on: the GPU, or the CPU where there was none."""
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
            raise ResultsError(f"{path} has no results in it (*.json); {_HOW}")
        found.update({file.resolve(): file for file in files})
    return list(found.values())


def _content(file: Path) -> Any:
    """None where it cannot be read: then the reader of results says why."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def _report(file: Path, data: dict[str, Any]) -> Report:
    try:
        report = from_json(data)
        texts = [o.op for o in report.ops] + [r.text for o in report.ops for r in o.results]
        if not all(isinstance(t, str) for t in texts) or not isinstance(report.facts, dict):
            raise TypeError("not text where text should be")
        for result in (r for o in report.ops for r in o.results):
            for errors in result.errors.values():
                if not all(is_number(e) for e in errors.values()):
                    raise TypeError(f"an error of {result.row} is no number")
    except (KeyError, TypeError, AttributeError) as error:
        raise ResultsError(
            f"{file} looks like a report of `opforge check --json` but is damaged or of another "
            f"opforge ({type(error).__name__}: {error}); check again"
        ) from None
    return report


def _must_be_one_machine(results: Results) -> None:
    """Times of two machines side by side would be read as a contest between implementations."""
    found = sorted({machine(run) for run in results.runs.values()})
    if len(found) > 1:
        raise OpforgeError(
            f"the results are of several machines ({', '.join(found)}), whose times must not stand "
            f"side by side: make a page of each, such as `opforge report {USUAL}/<gpu>`"
        )
