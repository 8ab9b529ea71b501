# SPDX-License-Identifier: Apache-2.0
"""The section about reliability: all rows of ``opforge check`` for all ops, failures first."""

from __future__ import annotations

from opforge.check.place import PLACES, title
from opforge.check.results import (
    FAILED,
    NOT_APPLICABLE,
    NOT_RUN,
    PASSED,
    OpReport,
    Report,
    Result,
)
from opforge.check.row import all_rows
from opforge.report.markup import Html, details, join, table, tag
from opforge.report.series import grouped

_SIGN = {PASSED: "✓", FAILED: "✗", NOT_RUN: "–", NOT_APPLICABLE: "·"}
_CLASS = {PASSED: "good", FAILED: "bad", NOT_RUN: "open", NOT_APPLICABLE: "none"}

Found = dict[tuple[str, str, str], Result]  # op, row, place


def merged(reports: list[Report]) -> Found:
    """Each result once. Later reports replace earlier ones."""
    return {(o.op, r.row, r.place): r for report in reports for o in report.ops for r in o.results}


def section(reports: list[Report]) -> Html:
    """Make the section: counts, failures, the table of rows, and why rows were not run."""
    found = merged(reports)
    impossible = [o for report in reports for o in report.ops if o.impossible]
    if not found and not impossible:
        return Html("")
    text = (
        ". c: CPU kernel, s: simulator, g: GPU. ✓ passed, ✗ failed, – not run, · does not apply to "
        "the op."
    )
    lead = tag("p", "Rows of ", tag("code", "opforge check"), text)
    parts: list[object] = [lead, _counts(found)]
    for op in impossible:
        words = tag("b", f"✗ {op.op} could not be checked: ")
        parts.append(tag("p", words, op.impossible, class_="bad"))
    parts += [_failure(op, r) for (op, _, _), r in found.items() if r.outcome == FAILED]
    parts += [_board(found), _not_run(found)]
    return join(parts)


def _places(found: Found) -> list[str]:
    there = {place for _, _, place in found}
    return [*(p for p in PLACES if p in there), *sorted(there - set(PLACES))]


def _counts(found: Found) -> Html:
    lines: list[list[object]] = []
    for op, of_op in grouped(found, lambda key: key[0]).items():
        for place in _places(found):
            results = [found[key] for key in of_op if key[2] == place]
            if not results:
                continue
            count = {o: sum(r.outcome == o for r in results) for o in _SIGN}
            failed = tag("td", f"✗ {count[FAILED]}", class_="bad") if count[FAILED] else 0
            passed, ran = OpReport(op, "", results).stars()
            words = title(place)
            lines.append([op, words, count[PASSED], failed, count[NOT_RUN], f"{passed} of {ran}"])
    heads = ["op", "place", "passed", "failed", "not run", "★ rows passed"]
    return table(heads, lines, numbers_from=3, label="Counts of checks", sortable=True)


def _failure(op: str, result: Result) -> Html:
    reasons = {r.name: r.reason for r in all_rows()}
    place = title(result.place)
    line = tag("b", f"✗ {op}, {result.row}, {place}", class_="bad")
    cause = f"Probably because of the same fault as {result.cause}." if result.cause else ""
    parts = [tag("p", words) for words in (reasons.get(result.row, ""), cause) if words]
    parts.append(tag("pre", result.text))
    if result.script:
        parts.append(details("A program that reproduces it", tag("pre", result.script)))
    return details(line, *parts, open_=not result.cause)


def _board(found: Found) -> Html:
    ops = list(dict.fromkeys(op for op, _, _ in found))
    there = {row for _, row, _ in found}
    known = {r.name: r for r in all_rows() if r.name in there}
    places = _places(found)
    lines: list[list[object]] = []
    for name in [*known, *sorted(there - set(known))]:  # also rows that no longer exist
        row = known.get(name)
        number = f"{row.number or ''}{'★' if row.star else ''}" if row else ""
        cells = [
            join([_mark(found[op, name, p]) for p in places if (op, name, p) in found], " ")
            for op in ops
        ]
        lines.append([number, name, *cells, row.reason if row else ""])
    heads = ["", "row", *ops, "reason"]
    board = table(heads, lines, words_last=True, label="Scoreboard", sortable=True)
    return details(f"Every row ({len(lines)})", board, open_=True, class_="board")


def _mark(result: Result) -> Html:
    sign = _SIGN.get(result.outcome, result.outcome)
    why = result.text.partition("\n")[0] if result.outcome != PASSED else ""
    letter = PLACES[result.place].letter if result.place in PLACES else result.place
    kind = _CLASS.get(result.outcome, "bad")
    return tag("span", f"{letter}{sign}", class_=kind, title=why or None)


def _not_run(found: Found) -> Html:
    """The reasons why rows were not run, each once."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for (op, row, place), result in found.items():
        if result.outcome == NOT_RUN:
            why = result.text.partition("\n")[0]
            reasons.setdefault((row, title(place), why), []).append(op)
    if not reasons:
        return Html("")
    lines = [[row, place, ", ".join(ops), why] for (row, place, why), ops in reasons.items()]
    return details(
        f"Not run, and why ({len(lines)})",
        table(["row", "place", "ops", "why"], lines, label="Not run", sortable=True),
    )
