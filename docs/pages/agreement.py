# SPDX-License-Identifier: Apache-2.0
"""docs/agreement.md: the times of `opforge bench` beside those of another clock."""

from __future__ import annotations

import json

from opforge.bench.results import Row

from .data import ROOT, Data, timed
from .text import GENERATED, prose, table

OTHER = ROOT / "benchmarks" / "results" / "do_bench" / "h200.json"
WITHIN, FAR = 0.05, 0.1


def page(data: Data) -> str:
    """Every call that both have timed, and how many agree."""
    other = json.loads(OTHER.read_text(encoding="utf-8"))
    ours = {_key(r): r for r in timed(data.results)}
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
        "# Another clock\n\n"
        + GENERATED
        + prose(
            "The same calls timed by `opforge bench`, by Triton's `do_bench` (median) and once, "
            "between two events of its own, behind a sleep and a flush that reads.",
            f"{run['gpu']}, driver {run['driver']}, torch {run['torch']}, triton {run['triton']}, "
            f"commit {run['commit']}, {run['date'][:10]}. `python benchmarks/agree.py` makes it.",
        )
        + prose(
            f"Of {len(lines)} calls {agree} agree with `do_bench` within 5%, {once_agree} with the "
            f"third way. {far} differ from `do_bench` by more than 10%, and {host_bound} of these "
            "take the host longer to make than the device to run: there it times the host. The "
            f"other {len(lines) - agree - far} are short kernels; "
            "[bench.md](bench.md#another-clock) says where their microseconds come from."
        )
        + table(heads, lines, first=3)
    )


def _key(row: Row) -> tuple[str, str, str, tuple[int, ...], str]:
    return row.op, row.direction, row.dtype, row.shape, row.implementation
