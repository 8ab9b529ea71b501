# SPDX-License-Identifier: Apache-2.0
"""The page of scores, from the reports in docs/scores.

`opforge check --json` writes them; tests/wrong_ops/baseline.py writes baseline.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from opforge.check import results, show
from opforge.check.place import PLACES
from opforge.check.row import all_rows

ROOT = Path(__file__).parents[2]
SCORES = ROOT / "docs" / "scores"
sys.path.insert(0, str(ROOT / "tests" / "wrong_ops"))
from expected import EXPECTED  # noqa: E402

TOP = """\
# Scores

`python docs/generate.py` makes this page from the reports in `docs/scores/`. [check.md](check.md)
explains them.

"""


def reports() -> list[results.Report]:
    """Every report. An op in two of them for one place would count twice, so that is an error."""
    files = [f for f in sorted(SCORES.glob("*.json")) if f.name != "baseline.json"]
    found = [results.from_json(json.loads(f.read_text())) for f in files]
    seen: dict[tuple[str, str], str] = {}
    for file, report in zip(files, found, strict=True):
        for op in report.ops:
            for place in {r.place for r in op.results}:
                other = seen.setdefault((op.op, place), file.name)
                if other != file.name:
                    sys.exit(f"{op.op} on {place} is in {other} and in {file.name}: remove one")
    return found


def provenance(found: list[results.Report]) -> str:
    lines = []
    for report in found:
        facts = report.facts
        places = dict.fromkeys(r.place for op in report.ops for r in op.results)
        where = ", ".join(PLACES[p].title for p in places)
        ops = ", ".join(op.op for op in report.ops)
        lines.append(
            f"- {where}, {facts['check']} check of {ops}: torch {facts['torch']}, "
            f"Python {facts['python']}, GPU {facts['gpu']}, {facts['time']} UTC."
        )
    return "\n".join(lines) + "\n"


def not_run(found: list[results.Report]) -> str:
    """The reasons why rows were not run, once each."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for report in found:
        for op in report.ops:
            for r in op.of(results.NOT_RUN):
                key = r.row, PLACES[r.place].title, r.text.splitlines()[0]
                reasons.setdefault(key, []).append(op.op)
    lines = [f"- {r} ({p}): {why} ({', '.join(ops)})\n" for (r, p, why), ops in reasons.items()]
    return "".join(lines)


def headers(found: list[results.Report]) -> str:
    """The lines of opforge's headers that ops compile but no op's check reaches."""
    reached: dict[str, set[int]] = {}
    missing: dict[str, set[int]] = {}
    for report in found:
        for op in report.ops:
            for r in op.results:
                for file, lines in r.coverage.get("headers", {}).items():
                    reached.setdefault(file, set()).update(lines["reached"])
                    missing.setdefault(file, set()).update(lines["missing"])
    if not reached:
        return ""
    left = {f: sorted(missing[f] - reached[f]) for f in sorted(missing)}
    text = "".join(f"- {f}: {', '.join(map(str, lines))}\n" for f, lines in left.items() if lines)
    count = sum(map(len, reached.values())), sum(map(len, left.values()))
    return (
        f"\n## opforge's headers\n\n{count[0]} lines that begin a block are reached by some op's "
        f"check, {count[1]} by none{': ' if text else '.'}\n\n{text}"
    )


def wrong_ops() -> str:
    """Which tool rejects which wrong op."""
    baseline = json.loads((SCORES / "baseline.json").read_text())
    numbers = {r.name: r.number for r in all_rows()}
    lines = ["| wrong op | `opforge check`, row | opcheck | gradcheck |", "|---|---|---|---|"]
    for name, fault in sorted(EXPECTED.items()):
        row = f"{numbers[fault.row] or ''} {fault.row}".strip()
        if name in baseline:
            marks = ["✓" if tool in baseline[name] else "" for tool in ("opcheck", "gradcheck")]
        else:
            marks = ["not run", "not run"]
        lines.append(f"| {name} | {row} ({PLACES[fault.place].title}) | {' | '.join(marks)} |")
    return "\n".join(lines) + "\n"


def caught() -> str:
    """How many wrong ops each tool rejects, among those that all tools have run on."""
    baseline = json.loads((SCORES / "baseline.json").read_text())
    ran = [baseline[name] for name in EXPECTED if name in baseline]
    count = {t: sum(t in found for found in ran) for t in ("opcheck", "gradcheck")}
    return (
        f"`opforge check` rejects all of {len(ran)} wrong ops, each on the row that names the "
        f"fault. `opcheck` rejects {count['opcheck']}, `gradcheck` rejects {count['gradcheck']}, "
        f"and the two together reject {sum(map(bool, ran))}."
    )


def page() -> str:
    found = reports()
    return (
        TOP
        + provenance(found)
        + "\n## Summary\n\n"
        + show.totals_table(found)
        + "\n## Every op\n\n"
        + "Code reached: the share of blocks in the op's own folder; in brackets, including the "
        "headers it compiles.\n\n"
        + show.summary_table(found)
        + headers(found)
        + "\n## Every row\n\n`c` the CPU kernel, `s` the simulator, `g` the GPU; ✓ passed, "
        "✗ failed, – not run, · not applicable.\n\n"
        + show.score_table(found)
        + "\nNot run:\n\n"
        + not_run(found)
        + "\n## Wrong ops\n\n"
        + caught()
        + " All tools ran on the same machine over the record's cases, `opcheck` in float32 and "
        "`gradcheck` in float64. Ops that only have CUDA code ran in the simulator.\n\n"
        + wrong_ops()
    )
