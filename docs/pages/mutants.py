# SPDX-License-Identifier: Apache-2.0
"""The page of mutants: how many generated faults the check detects.

Its input is tests/mutation/results.json, which tests/mutation/run.py writes, and explained.json
beside it, with an explanation of each survivor that was investigated.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from opforge.check.place import PLACES

FOLDER = Path(__file__).parents[2] / "tests" / "mutation"
TOP = """\
# Mutants

How good is the check itself? `tests/mutation/run.py` makes small faults in the kernels of the
built-in ops and in the headers they compile: a bound off by one; a changed operator, constant or
index; a missing term, statement or barrier; an accumulator of another type. The faults are
generated and drawn evenly over ops, places and kinds. A mutant that does not compile, or that
compiles to the machine code of the original, is not a fault and does not count. The others run
through the quick check, and through `torch.library.opcheck` and `gradcheck` over the record's
cases. Faults that survive the quick check run through the full check. Its column also counts what
the quick check detects.

Some rows, such as `narrowing` and part of `long-row`, were written after looking at survivors among
these very mutants. Mutants of another seed would be a stricter test.

"""


def _load() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    data = json.loads((FOLDER / "results.json").read_text())
    explained = json.loads((FOLDER / "explained.json").read_text())
    why = {(e["name"], e["new"]): e for e in explained}
    for m in data["mutants"]:
        known = why.get((m["name"], m["new"]))
        m["why"] = known["why"] if known else "not investigated"
        m["harmless"] = bool(known and known["harmless"])
    return data["facts"], data["mutants"]


def judged(mutants: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The real faults: they compile to different code and change a result."""
    ran = [m for m in mutants if m["quick"] in ("killed", "survived")]
    return [m for m in ran if not (m["quick"] == "survived" and m["harmless"])]


def _share(count: int, of: int) -> str:
    return f"{count} of {of} ({count / of:.0%})" if of else "–"


def _killed(mutants: list[dict[str, Any]], by: str) -> int:
    if by == "full":
        return sum("killed" in (m["quick"], m.get("full")) for m in mutants)
    return sum(m[by] == "killed" for m in mutants)


def _row(name: str, mutants: list[dict[str, Any]]) -> str:
    count, faults = Counter(m["quick"] for m in mutants), judged(mutants)
    harmless = sum(m["quick"] == "survived" and m["harmless"] for m in mutants)
    full = any("full" in m for m in faults)
    cells = [
        name,
        str(len(mutants)),
        str(count["stillborn"]),
        str(count["equivalent"]),
        str(harmless),
        _share(_killed(faults, "quick"), len(faults)),
        _share(_killed(faults, "full"), len(faults)) if full else "–",
        _share(_killed(faults, "baseline"), len(faults)),
    ]
    return f"| {' | '.join(cells)} |\n"


def _table(groups: dict[str, list[dict[str, Any]]], first: str) -> str:
    text = (
        f"| {first} | mutants | do not compile | same machine code | change no result "
        "| quick check | full check | opcheck + gradcheck |\n|---|--:|--:|--:|--:|--:|--:|--:|\n"
    )
    return text + "".join(_row(name, some) for name, some in groups.items())


def _grouped(mutants: list[dict[str, Any]], key: str) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for m in sorted(mutants, key=lambda m: m[key]):
        groups.setdefault(m[key], []).append(m)
    return groups


def sentence() -> str:
    """The share, for the README."""
    _, mutants = _load()
    faults = judged(mutants)
    quick, other = _killed(faults, "quick"), _killed(faults, "baseline")
    return (
        f"The quick check detects {quick / len(faults):.0%} of {len(faults)} faults generated in "
        f"opforge's kernels; `opcheck` and `gradcheck` together detect {other / len(faults):.0%}."
    )


def progress() -> str:
    """How many mutants have run, in a sentence."""
    facts, mutants = _load()
    return f"{len(mutants)} of {facts['count']} mutants have run so far."


def _in_full(faults: list[dict[str, Any]]) -> str:
    """What the full check says about the faults that the quick check let pass."""
    left = [m for m in faults if m["quick"] == "survived"]
    count = Counter(m.get("full", "not run") for m in left)
    return (
        f"{len(left)} faults survive the quick check. The full check detects {count['killed']} of "
        f"them and misses {count['survived']}. {count['unfinished']} are undecided: the check took "
        "more than 15 minutes, or the same row also fails without the fault. "
        f"{count['not run']} have not run."
    )


def page() -> str:
    """Shares, rows, survivors."""
    facts, mutants = _load()
    places = {PLACES[p].title: some for p, some in _grouped(mutants, "place").items()}
    rows = Counter(m["row"].partition(":")[0] for m in mutants if m["quick"] == "killed")
    survivors = [m for m in mutants if m["quick"] == "survived" and m.get("full") != "killed"]
    listed = "".join(
        f"- {'No result changes' if m['harmless'] else 'A fault'}: {m['op']} "
        f"({PLACES[m['place']].title}), {m['file']}:{m['line']}, {m['kind']}: {m['why']}\n"
        f"  - `{m['old'].strip()}`\n  - `{m['new'].strip()}`\n"
        for m in sorted(survivors, key=lambda m: (m["harmless"], m["name"]))
    )
    return (
        f"{TOP}`python docs/generate.py` makes this page. {progress()} Seed {facts['seed']}, torch "
        f"{facts['torch']}, {facts['time']} UTC, sources {facts['sources']}.\n\n"
        + _table({**places, "all": mutants}, "place")
        + f"\n{sentence()}\n\n{_in_full(judged(mutants))}\n"
        + "\n## By kind\n\n"
        + _table(_grouped(mutants, "kind"), "kind")
        + "\n## Rows that detect them\n\n"
        + "The first row that fails; later rows do not run.\n\n"
        + "".join(f"- {row}: {count}\n" for row, count in rows.most_common())
        + "\n## What survives\n\n"
        + (listed or "Nothing.\n")
    )
