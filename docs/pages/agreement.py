# SPDX-License-Identifier: Apache-2.0
"""docs/agreement.md: the times of `opforge bench` compared with another benchmark."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from typing import Any

from opforge.bench.results import Row, read

from .data import ROOT, Data, timed
from .text import GENERATED, enumerated, prose, table

OTHER = ROOT / "benchmarks" / "do_bench" / "h200.json"
SAME = ROOT / "benchmarks" / "do_bench" / "bench"  # the same calls, by opforge bench
AGAIN = ROOT / "benchmarks" / "again" / "h200.json"
WITHIN, FAR = 0.05, 0.1


def page(data: Data) -> str:
    """Every call that both have timed, and how many agree."""
    other = json.loads(OTHER.read_text(encoding="utf-8"))
    ours = {_key(r): r for r in timed(read(SAME))}
    lines, agree, once_agree, far, host_bound = [], 0, 0, 0, 0
    for row in other["rows"]:
        key = row["op"], row["pass"], row["dtype"], tuple(row["shape"]), row["implementation"]
        if key not in ours:
            continue
        mine = ours[key].us or 0.0
        host = ours[key].host_us or 0.0
        difference, once = row["us"] / mine - 1, row["once_us"] / mine - 1
        agree += abs(difference) <= WITHIN
        once_agree += abs(once) <= WITHIN
        far += abs(difference) > FAR
        host_bound += abs(difference) > FAR and host > mine
        lines.append(
            (
                f"{row['op']} {row['pass']}",
                " × ".join(map(str, row["shape"])),
                row["implementation"],
                f"{mine:.1f}",
                f"{row['us']:.1f}",
                f"{difference:+.1%}",
                f"{row['once_us']:.1f}",
                f"{once:+.1%}",
                f"{host:.0f}",
            )
        )
    run = other["run"]
    heads = ("call", "shape", "", "µs", "do_bench", "", "once", "", "host µs")
    return (
        "# Comparison with do_bench\n\n"
        + GENERATED
        + prose(
            "The same calls, timed in three ways: by `opforge bench`; by Triton's `do_bench` "
            "(median); and once, as a single call between two events, after a sleep and a cache "
            "flush that reads.",
            f"{run['gpu']}, driver {run['driver']}, torch {run['torch']}, triton {run['triton']}, "
            f"commit {run['commit']}, {run['date'][:10]}. `benchmarks/agree.py` takes the times.",
        )
        + prose(
            f"{agree} of {len(lines)} calls agree with `do_bench` within 5%, and {once_agree} with "
            f"the single call. {far} differ from `do_bench` by more than 10%. In {host_bound} of "
            "these, the host takes longer to make the call than the device to run it, so "
            f"`do_bench` times the host. The other {len(lines) - agree - far} are short kernels; "
            "[bench.md](bench.md#comparison-with-do_bench) explains their differences."
        )
        + table(heads, lines, first=3)
        + "\n## The ceiling\n\n"
        + prose("A copy of the given number of bytes, which `opforge bench` uses as the ceiling.")
        + table(("MB moved", "µs", "GB/s", "do_bench", "", "once", ""), _copies(other["rows"]), 0)
        + "\n## Repeatability\n\n"
        + _again(data)
    )


def _copies(rows: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    measured: dict[int, list[float]] = {}
    for row in timed(read(SAME)):
        if "copy" in row.ceilings:
            measured.setdefault(row.bytes, []).append(row.ceilings["copy"])
    for row in (r for r in rows if r["op"] == "copy"):
        moved = 2 * 2 * row["shape"][0]  # read and written, in bfloat16
        if moved in measured:
            us = statistics.median(measured[moved])
            yield (
                f"{moved / 1e6:.0f}",
                f"{us:.1f}",
                f"{moved / us / 1e3:.0f}",
                f"{row['us']:.1f}",
                f"{row['us'] / us - 1:+.1%}",
                f"{row['once_us']:.1f}",
                f"{row['once_us'] / us - 1:+.1%}",
            )


def _again(data: Data) -> str:
    """Two runs of `opforge bench`, on machines started for each."""
    first = {r.key: r for r in timed(data.results)}
    again = read(AGAIN)
    pairs = [(r, first[r.key]) for r in timed(again) if r.key in first]
    found = [(abs((r.us or 0.0) / (then.us or 1.0) - 1), r) for r, then in pairs]
    found.sort(key=lambda pair: pair[0])
    worst, row = found[-1]
    (run,) = again.runs.values()
    shapes = dict.fromkeys(r.size for _, r in found)
    return prose(
        f"The built-in ops and eager were measured a second time at {enumerated(list(shapes))} in "
        f"bfloat16, on a newly started machine ({run['date']} UTC). The {len(found)} times "
        f"differ from the first ones by {statistics.median(d for d, _ in found):.1%} in the "
        f"median and by {worst:.1%} at most ({row.title}, {row.size}, {row.implementation})."
    )


def _key(row: Row) -> tuple[str, str, str, tuple[int, ...], str]:
    return row.op, row.direction, row.dtype, row.shape, row.implementation
