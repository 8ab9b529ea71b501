# SPDX-License-Identifier: Apache-2.0
"""Assembles the page. It needs no other files, and is readable without its script."""

from __future__ import annotations

from pathlib import Path

from opforge.bench.results import Results
from opforge.check.results import FAILED, NOT_RUN, PASSED, Report
from opforge.report import accuracy, roofline, scaling, scoreboard, series, speed, tables
from opforge.report.load import machine
from opforge.report.markup import Html, count, join, tag

_HERE = Path(__file__).parent


def page(results: Results, reports: list[Report], title: str) -> str:
    """Make an HTML page without external files.

    Args:
        results: of ``opforge bench``, from one machine.
        reports: of ``opforge check``. If two have the same op, row and place, the later counts.
        title: title of the page.
    """
    styles = series.styles(results)
    sections = {
        "At a glance": speed.glance(results),
        "Roofline": roofline.section(results, styles),
        "Share of the ceiling": speed.shares(results, styles),
        "Against others": speed.against(results),
        "Scaling": scaling.section(results, styles),
        "Accuracy": accuracy.section(results, reports, styles),
        "Reliability": scoreboard.section(reports),
        "Every measurement": tables.measurements(results),
        "Environment": tables.environment(results, reports),
    }
    shown = {name: body for name, body in sections.items() if body}
    links = [tag("li", tag("a", name, href=f"#{_anchor(name)}")) for name in shown]
    content = [
        tag("h1", title),
        _summary(results, reports),
        tag("nav", tag("ul", *links), aria_label="Contents") if links else "",
        *[tag("section", tag("h2", n), body, id=_anchor(n)) for n, body in shown.items()],
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"{tag('title', title)}\n<style>\n{own('plot.css')}{own('page.css')}</style>\n"
        "</head>\n<body>\n<main>\n"
        + "\n".join(content)
        + f"\n</main>\n<script>\n{own('page.js')}</script>\n</body>\n</html>\n"
    )


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def own(name: str) -> str:
    """The content of a file of this package, without its license line."""
    return (_HERE / name).read_text(encoding="utf-8").partition("\n")[2]


def _summary(results: Results, reports: list[Report]) -> Html:
    """A sentence or two about the contents of the page and the failures."""
    words = []
    if results.rows:
        ops = len({r.op for r in results.rows})
        measured = count(len(results.rows), "measurement")
        places = ", ".join(dict.fromkeys(machine(run) for run in results.runs.values()))
        dates = sorted({str(run["date"])[:10] for run in results.runs.values() if run.get("date")})
        when = f", {' to '.join(dict.fromkeys((dates[0], dates[-1])))}" if dates else ""
        words.append(f"{measured} of {count(ops, 'op')} on {places}{when}. ")
    checks = scoreboard.merged(reports).values()
    if checks:
        counts = {o: sum(r.outcome == o for r in checks) for o in (PASSED, FAILED, NOT_RUN)}
        failed = f"{counts[FAILED]} failed"
        bad = tag("b", f"✗ {failed}", class_="bad") if counts[FAILED] else failed
        rest = f", {counts[NOT_RUN]} not run."
        words.append(join([f"Checks: {counts[PASSED]} passed, ", bad, rest]))
    return tag(
        "p", *(words or ["There is nothing to show: no measurements and no checks."]), class_="lead"
    )
