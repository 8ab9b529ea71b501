# SPDX-License-Identifier: Apache-2.0
"""Files of benchmark results: reading, writing, merging, and comparing two of them.

The format is in docs/bench.md. The key of a row is (op, pass, variant, dtype, shape,
implementation). A newer row replaces an older one, so several short runs can make one file.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from opforge.errors import OpforgeError

SCHEMA = 1
OURS = "opforge"

Key = tuple[str, str, str, str, tuple[int, ...], str]


class ResultsError(OpforgeError):
    """A file of results cannot be used."""


@dataclass
class Row:
    """One implementation of one pass of an op, at one shape and dtype; times in microseconds."""

    op: str
    direction: str  # "forward" or "backward"; "pass" in the file
    variant: str  # name of the arguments from the record's sized, "" if there is one set
    dtype: str
    shape: tuple[int, ...]
    implementation: str
    run: str  # the key of its provenance
    us: float | None = None  # median time per call over all turns; None if it was not timed
    low: float | None = None  # 95% confidence interval of that median
    high: float | None = None
    spread: float | None = None  # interquartile range over the median
    turns: int = 0
    calls: int = 0  # per turn
    host_us: float | None = None  # time of the host per call; None if the host does the work
    bytes: int = 0  # bytes that must be moved, from the record
    operations: int = 0
    ceilings: dict[str, float] = field(default_factory=dict)  # measured ceilings: name -> us
    ceiling: str = ""  # the name of the one that counts
    extra_bytes: int | None = None  # peak memory beyond inputs and outputs
    saved_bytes: int | None = None  # bytes saved for the backward beyond inputs and outputs
    ulp_max: float | None = None  # error against the float64 truth
    ulp_rms: float | None = None
    state: dict[str, Any] = field(
        default_factory=dict
    )  # clocks, power and temperature during the turns
    note: str = ""
    error: str = ""  # why it was not timed, or why its time is rejected

    @property
    def key(self) -> Key:
        """The key of the row. A newer row with the same key replaces it."""
        return (*self.workload, self.implementation)

    @property
    def workload(self) -> tuple[str, str, str, str, tuple[int, ...]]:
        """The key without the implementation."""
        return (self.op, self.direction, self.variant, self.dtype, self.shape)

    @property
    def title(self) -> str:
        """A title such as ``reduce_sum forward, last dim``."""
        return f"{self.op} {self.direction}" + (f", {self.variant}" if self.variant else "")

    @property
    def size(self) -> str:
        """The shape as text, such as ``8192 × 8192``."""
        return " × ".join(map(str, self.shape))

    @property
    def ceiling_us(self) -> float | None:
        """The time of the ceiling."""
        return self.ceilings.get(self.ceiling)

    @property
    def share(self) -> float | None:
        """The share of the ceiling: 1 is as fast as possible."""
        limit = self.ceiling_us
        return limit / self.us if limit and self.us else None

    @property
    def gb_per_s(self) -> float | None:
        """The bandwidth, counting only bytes that must be moved."""
        return self.bytes / self.us / 1e3 if self.us and self.bytes else None

    @property
    def tflop_per_s(self) -> float | None:
        """The rate of operations, as counted by the record."""
        return self.operations / self.us / 1e6 if self.us and self.operations else None

    def as_json(self) -> dict[str, Any]:
        """The row as data for JSON. Unknown values are left out."""
        found = {("pass" if k == "direction" else k): v for k, v in asdict(self).items()}
        found["shape"] = list(self.shape)
        return {k: _rounded(v) for k, v in found.items() if v not in (None, {}) and v != ""}


@dataclass
class Results:
    """Rows and the runs they come from."""

    rows: list[Row] = field(default_factory=list)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, other: Results) -> None:
        """Add newer results, and drop runs that have no rows left."""
        by_key = {r.key: r for r in self.rows}
        by_key.update({r.key: r for r in other.rows})
        self.rows = list(by_key.values())
        runs = {**self.runs, **other.runs}
        self.runs = {r.run: runs[r.run] for r in self.rows}

    def of(self, op: str) -> Results:
        """The rows of one op."""
        rows = [r for r in self.rows if r.op == op]
        return Results(rows, {r.run: self.runs[r.run] for r in rows})

    def workloads(self) -> dict[tuple[Any, ...], dict[str, Row]]:
        """Workload -> implementation -> row."""
        found: dict[tuple[Any, ...], dict[str, Row]] = {}
        for row in self.rows:
            found.setdefault(row.workload, {})[row.implementation] = row
        return found

    def _repr_html_(self) -> str:
        """The results in a notebook."""
        from opforge.report import notebook  # the pages import this module

        return notebook.of_bench(self)

    def write(self, path: Path) -> None:
        """Write a file atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(" " + json.dumps(r.as_json()) for r in self.rows)
        runs = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in self.runs.items())
        text = f'{{"schema": {SCHEMA},\n"runs": {{\n{runs}\n}},\n"rows": [\n{lines}\n]}}\n'
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)


def read(path: Path) -> Results:
    """Read the results of a file, or of all files in a folder."""
    if path.is_dir():
        files = sorted(path.glob("*.json"))
        if not files:
            raise ResultsError(f"{path} has no results (*.json)")
        found = Results()
        for file in files:
            found.add(read(file))
        return found
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ResultsError(f"there are no results at {path}") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path} is damaged, it is not JSON: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("schema"), int):
        raise ResultsError(f"{path} has no results of `opforge bench`: it has no schema number")
    if data["schema"] != SCHEMA:
        age = "an older" if data["schema"] < SCHEMA else "a newer"
        raise ResultsError(
            f"{path} is from {age} opforge: it has schema {data['schema']}, not {SCHEMA}; "
            "measure again"
        )
    try:
        results = Results([_row(r) for r in data["rows"]], dict(data["runs"]))
        missing = {r.run for r in results.rows} - set(results.runs)
        if not all(isinstance(run, dict) for run in results.runs.values()):
            raise TypeError("the provenance of a run is not an object")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ResultsError(f"{path} is damaged: {type(error).__name__}: {error}") from None
    if missing:
        raise ResultsError(f"{path} is damaged: no provenance for run {sorted(missing)[0]}")
    return results


def store(results: Results, path: Path) -> list[Path]:
    """Merge results into a file, or into ``<op>.json`` in a folder. Returns the written files."""
    parts: dict[Path, Results] = {}
    for op in dict.fromkeys(r.op for r in results.rows):
        parts.setdefault(file_for(op, path), Results()).add(results.of(op))
    for file, part in parts.items():
        merged = read(file) if file.exists() else Results()
        merged.add(part)
        merged.write(file)
    return list(parts)


def file_for(op: str, path: Path) -> Path:
    """The file for the results of an op: ``path`` itself, or ``<op>.json`` if it is a folder."""
    is_file = path.is_file() or (path.suffix == ".json" and not path.is_dir())
    return path if is_file else path / f"{op}.json"


def check_device(results: Results, device: str, path: Path) -> None:
    """Raise if a file has results of another kind of machine."""
    others = {run.get("gpu", "the CPU") for run in results.runs.values()} - {device}
    if others:
        raise ResultsError(
            f"{path} has results of {', '.join(sorted(others))}, but these are from {device}; "
            "choose another file"
        )


@dataclass(frozen=True)
class Change:
    """An implementation then and now, each as a share of the ceiling of its own run."""

    row: Row
    before: float
    now: float
    noise: float  # a smaller difference means nothing

    @property
    def ratio(self) -> float:
        """Speed now divided by speed then."""
        return self.now / self.before


def compare(old: Results, new: Results, least_noise: float) -> list[Change]:
    """Compare opforge's rows that are in both. The noise is at least ``least_noise``."""
    before = {r.key: r for r in old.rows}
    found = []
    for row in new.rows:
        then = before.get(row.key)
        if row.implementation != OURS or then is None or row.error or then.error:
            continue
        if row.share is None or then.share is None:
            continue
        noise = max(least_noise, _relative(row) + _relative(then))
        found.append(Change(row, then.share, row.share, noise))
    return found


def lost(old: Results, new: Results) -> list[Row]:
    """opforge's rows that had a time before and have an error now."""
    timed = {r.key for r in old.rows if r.us and not r.error}
    return [r for r in new.rows if r.implementation == OURS and r.error and r.key in timed]


def best_other(rows: Iterable[Row]) -> Row | None:
    """The fastest row of a workload that is not opforge's."""
    timed = [r for r in rows if r.implementation != OURS and r.us and not r.error]
    return min(timed, key=lambda r: r.us or 0.0, default=None)


def overlap(one: Row, other: Row) -> bool:
    """Whether the confidence intervals of two times overlap, so that either may be faster."""
    bounds = (one.low, one.high, other.low, other.high)
    if any(b is None for b in bounds):
        return False
    return bool(one.low <= other.high and other.low <= one.high)  # type: ignore[operator]


def _relative(row: Row) -> float:
    """Half the width of the confidence interval, relative to the median."""
    if row.us is None or row.low is None or row.high is None:
        return 0.0
    return (row.high - row.low) / 2 / row.us


def _row(data: dict[str, Any]) -> Row:
    known = {f.name for f in fields(Row)}
    values = {("direction" if k == "pass" else k): v for k, v in data.items()}
    kept = {k: v for k, v in values.items() if k in known}
    row = Row(**{"variant": "", **kept, "shape": tuple(kept["shape"])})
    _must_be_sound(row)
    return row


def _must_be_sound(row: Row) -> None:
    """Raise TypeError if a field has the wrong type, because files may have been edited."""
    known = ("us", "low", "high", "spread", "host_us", "extra_bytes", "saved_bytes")
    maybe = [getattr(row, name) for name in (*known, "ulp_max", "ulp_rms")]
    sure = [row.bytes, row.operations, *row.shape, *row.ceilings.values()]
    words = (row.op, row.direction, row.variant, row.dtype, row.implementation, row.error, row.note)
    if not all(v is None or is_number(v) for v in maybe) or not all(map(is_number, sure)):
        raise TypeError(f"a field that must be a number is not, in {row.key}")
    if not all(isinstance(w, str) for w in words):
        raise TypeError(f"a field that must be text is not, in {row.key}")


def is_number(value: Any) -> bool:
    """Whether a value from a file is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _rounded(value: Any) -> Any:
    """Round to five significant digits, which is more than a clock's resolution."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return value
