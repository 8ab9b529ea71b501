# SPDX-License-Identifier: Apache-2.0
"""Formats a report of a check for a terminal, as an HTML page and as Markdown tables."""

from __future__ import annotations

import html
import textwrap
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from opforge.check.place import PLACES
from opforge.check.results import FAILED, NOT_APPLICABLE, NOT_RUN, PASSED, OpReport, Report, Result
from opforge.check.row import Row, all_rows
from opforge.terminal.output import say, show_table
from opforge.truth.compare import in_ulps

_MARK = {PASSED: "[green]✓[/]", FAILED: "[red]✗[/]", NOT_RUN: "[yellow]–[/]", NOT_APPLICABLE: "·"}
_SIGN = {PASSED: "✓", FAILED: "✗", NOT_RUN: "–", NOT_APPLICABLE: "·"}
_ALL_DIGITS = 2.0**24  # ulps of float32 in a value: such an error is as large as the value


def on_console(report: Report, out: Console) -> None:
    """Print failures with their scripts, then a table of rows and a summary for each op."""
    for op in report.ops:
        _one_op(op, out)
    if report.interrupted:
        done = sum(len(o.results) for o in report.ops)
        say(out, f"interrupted after {done} of {done + report.left} rows", "bold red")
    if len(report.ops) > 1:
        counts = [f"{sum(len(o.of(x)) for o in report.ops)} {x}" for x in (PASSED, FAILED, NOT_RUN)]
        out.print(f"[bold]{len(report.ops)} ops: {', '.join(counts)}[/]", highlight=False)


def _one_op(op: OpReport, out: Console) -> None:
    if op.impossible:
        text = f"[red]{op.op} could not be checked:[/] {escape(op.impossible)}"
        out.print(text, highlight=False, soft_wrap=True)
    if not op.results:
        return
    for result in op.of(FAILED):
        if not result.cause:
            _failure(op, result, out)
    for cause in dict.fromkeys(r.cause for r in op.of(FAILED) if r.cause):
        names = [f"{r.row} ({PLACES[r.place].title})" for r in op.of(FAILED) if r.cause == cause]
        text = f"these rows failed as well, probably because of the same fault as {cause}: "
        out.print(f"[red]{text}[/]{', '.join(names)}\n", highlight=False)
    places = [p for p in PLACES if any(r.place == p for r in op.results)]
    table = Table(box=None, pad_edge=False)
    for head in ("", "row", *[PLACES[p].title for p in places]):
        table.add_column(head, no_wrap=True)
    table.add_column("")
    for row, found in _by_row(op):
        marks = [_MARK[found[p].outcome] if p in found else "" for p in places]
        table.add_row(str(row.number or ""), row.name, *marks, escape(_remark(found)))
    show_table(out, table)
    for text in _accuracy(op):
        say(out, text)
    kernels = "; ".join(f"{PLACES[p].title}: {op.kernels[p]}" for p in places if p in op.kernels)
    passed, ran = op.stars()
    colour = "red" if op.of(FAILED) else "green"
    say(out, f"checked {kernels}")
    out.print(
        f"[bold {colour}]{op.op}: {op.count()}[/] (star rows that ran: {passed} of {ran} passed)\n",
        highlight=False,
    )


def _failure(op: OpReport, result: Result, out: Console) -> None:
    row = _row(result.row)
    where = PLACES[result.place].title
    out.print(f"[bold red]✗ {op.op}, {row.label}, {where}[/]", highlight=False)
    out.print(f"  [dim]{escape(row.reason)}[/]", highlight=False)
    say(out, textwrap.indent(result.text, "  "))
    if result.script:
        say(out, "  to reproduce it:")
        say(out, textwrap.indent(result.script, "    "))
    out.print()


def _row(name: str) -> Row:
    return next(r for r in all_rows() if r.name == name)


def _by_row(op: OpReport) -> list[tuple[Row, dict[str, Result]]]:
    found = []
    for row in all_rows():
        of_row = {r.place: r for r in op.results if r.row == row.name}
        if of_row:
            found.append((row, of_row))
    return found


def _remark(found: dict[str, Result]) -> str:
    """The remarks of a row: why it was not run or does not apply, or what it covered."""
    texts = [r.text.splitlines()[0] for r in found.values() if r.text and r.outcome != FAILED]
    return "; ".join(dict.fromkeys(texts))


def _accuracy(op: OpReport) -> list[str]:
    """Lines with the largest and the mean error in ulps, next to PyTorch's.

    If a result passed with an error larger than the value, the true value is 0 except for
    roundings, as in a sum that cancels. Ulps say nothing then.
    """
    lines = []
    for place in PLACES:
        for what, row in (("forward", "own-cases"), ("backward", "gradients")):
            for r in op.results:
                if r.place == place and r.row == row and what in r.errors:
                    e = r.errors[what]
                    if e["max"] > _ALL_DIGITS:
                        lines.append(
                            f"{PLACES[place].title} {what}: errors in ulps mean nothing here: "
                            "some true values are 0 except for rounding"
                        )
                        continue
                    ours, rms, torchs, torchs_rms = (
                        in_ulps(e[k]) for k in ("max", "rms", "torch_max", "torch_rms")
                    )
                    lines.append(
                        f"{PLACES[place].title} {what}: at most {ours} ulp from the truth, "
                        f"rms {rms} (PyTorch: {torchs}, {torchs_rms})"
                    )
    return lines


# --- Markdown and HTML ----------------------------------------------------------------------------


def score_table(reports: list[Report]) -> str:
    """A Markdown table of all rows, for each op and place, from one or several reports."""
    ops: dict[str, dict[tuple[str, str], Result]] = {name: {} for name in _names(reports)}
    for report in reports:
        for op in report.ops:
            for r in op.results:
                ops[op.op][r.row, r.place] = r
    places = [p for p in PLACES if any(p == k[1] for found in ops.values() for k in found)]
    heads = "".join(f" {op} |" for op in ops)
    lines = [f"| | row |{heads}", "|---|---|" + "---|" * len(ops)]
    for row in all_rows():
        cells = []
        for found in ops.values():
            signs = [
                f"{PLACES[p].letter}{_SIGN[found[row.name, p].outcome]}"
                for p in places
                if (row.name, p) in found
            ]
            cells.append(" ".join(signs))
        star = "★" if row.star else ""
        lines.append(f"| {row.number or ''}{star} | {row.name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def summary_table(reports: list[Report]) -> str:
    """A Markdown table with one line per op and place: quick or full, passed, failed, not run."""
    lines = [
        "| op | place | check | passed | failed | not run | ★ rows | code reached |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in _names(reports):
        for place in PLACES:
            for report in reports:
                for op in report.ops:
                    results = [r for r in op.results if op.op == name and r.place == place]
                    if results:
                        start = f"| {name} | {PLACES[place].title} | {report.facts['check']} |"
                        lines.append(f"{start} {_counts(results)} | {_coverage(results)} |")
    return "\n".join(lines) + "\n"


def _coverage(results: list[Result]) -> str:
    """``100% (96%)``: the share of the op's own blocks, and with those of headers it uses."""
    found = [r.coverage for r in results if r.coverage]
    return "".join(f"{c['share']:.0%} ({c['with headers']:.0%})" for c in found[:1])


def totals_table(reports: list[Report]) -> str:
    """A Markdown table with one line per place, which sums up all ops."""
    lines = [
        "| place | ops | in full | passed | failed | not run | ★ rows |",
        "|---|---|---|---|---|---|---|",
    ]
    for place in PLACES:
        results: list[Result] = []
        checks = []
        for report in reports:
            for op in report.ops:
                here = [r for r in op.results if r.place == place]
                results += here
                checks += [report.facts["check"]] if here else []
        if checks:
            start = f"| {PLACES[place].title} | {len(checks)} | {checks.count('full')} |"
            lines.append(f"{start} {_counts(results)} |")
    return "\n".join(lines) + "\n"


def _names(reports: list[Report]) -> list[str]:
    return sorted({op.op for report in reports for op in report.ops})


def _counts(results: list[Result]) -> str:
    """``35 | 0 | 2 | 16 of 16``: passed, failed, not run, star rows."""
    counts = [sum(r.outcome == x for r in results) for x in (PASSED, FAILED, NOT_RUN)]
    passed, ran = OpReport("", "", results).stars()
    return " | ".join([*map(str, counts), f"{passed} of {ran}"])


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .15rem .6rem;
       vertical-align: top; border-bottom: 1px solid #e4e4e4 } th { border-bottom-color: #999 }
.passed { color: #167a33 } .failed { color: #b91c1c; font-weight: 600 } .not-run { color: #9a6700 }
.na, .why { color: #777 } pre { background: #f6f6f6; padding: .7rem; overflow-x: auto }
summary { cursor: pointer }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #161616 }
  td, th { border-bottom-color: #333 } pre { background: #222 } .passed { color: #4ade80 }
  .failed { color: #f87171 } .not-run { color: #fbbf24 } .na, .why { color: #999 } }
"""


def as_html(report: Report) -> str:
    """The report as an HTML page without external files."""
    facts = ", ".join(f"{k} {v}" for k, v in report.facts.items())
    body = [f"<h1>opforge check</h1><p class=why>{html.escape(facts)}</p>"]
    for op in report.ops:
        body.append(f"<h2>{html.escape(op.op)}</h2>")
        if op.impossible:
            body.append(f"<p class=failed>could not be checked: {html.escape(op.impossible)}</p>")
            continue
        ran = "; ".join(f"{PLACES[p].title}: {k}" for p, k in op.kernels.items())
        body.append(f"<p><b>{op.count()}</b>. {html.escape(ran)}.</p>")
        body += [f"<p>{html.escape(text)}</p>" for text in _accuracy(op)]
        body.append(_html_table(op))
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>opforge check</title>"
        f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style>"
        + "\n".join(body)
        + "</html>\n"
    )


def _html_table(op: OpReport) -> str:
    places = [p for p in PLACES if any(r.place == p for r in op.results)]
    heads = "".join(f"<th>{PLACES[p].title}</th>" for p in places)
    lines = [f"<table><tr><th></th><th>row</th>{heads}<th></th></tr>"]
    for row, found in _by_row(op):
        cells = "".join(_html_cell(found.get(p)) for p in places)
        details = "".join(_html_failure(r) for r in found.values() if r.outcome == FAILED)
        remark = _remark(found)
        lines.append(
            f"<tr><td>{row.number or ''}{'★' if row.star else ''}</td>"
            f"<td title='{html.escape(row.reason, quote=True)}'>{row.name}</td>{cells}"
            f"<td><span class=why>{html.escape(remark)}</span>{details}</td></tr>"
        )
    return "\n".join([*lines, "</table>"])


def _html_cell(result: Result | None) -> str:
    if result is None:
        return "<td></td>"
    kind = {PASSED: "passed", FAILED: "failed", NOT_RUN: "not-run", NOT_APPLICABLE: "na"}
    word = result.outcome if result.outcome != PASSED else f"{_SIGN[PASSED]} {result.seconds:.1f} s"
    return f"<td class={kind[result.outcome]}>{word}</td>"


def _html_failure(result: Result) -> str:
    first, *_ = result.text.splitlines() or [""]
    return (
        f"<details><summary>{html.escape(f'{PLACES[result.place].title}: {first}')}</summary>"
        f"<pre>{html.escape(result.text)}</pre><p>To reproduce it:</p>"
        f"<pre>{html.escape(result.script)}</pre></details>"
    )


def write(report: Report, json_file: Path | None, html_file: Path | None) -> None:
    """Write the report to the requested files."""
    import json

    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    if html_file is not None:
        html_file.parent.mkdir(parents=True, exist_ok=True)
        html_file.write_text(as_html(report), encoding="utf-8")
