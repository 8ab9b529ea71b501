# SPDX-License-Identifier: Apache-2.0
"""The page of `opforge report` and its command: escaping, nothing from outside, files, errors."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
from helpers import PATIENCE
from report_samples import NASTY, RUN, Page, check, many, one, some
from typer.testing import CliRunner

from opforge.bench.results import Results
from opforge.check.results import Result
from opforge.errors import OpforgeError
from opforge.report.cli import report
from opforge.report.load import load
from opforge.report.page import page


def test_everything_from_files_is_escaped() -> None:
    nasty = one(
        op=NASTY,
        dtype=NASTY,
        variant=NASTY,
        implementation=NASTY,
        run=NASTY,
        note=NASTY,
        ceiling="copy",
    )
    nasty.state, nasty.ceilings = {NASTY: NASTY}, {"copy": 100.0, NASTY: 1.0}
    failed = one(op=NASTY, error=NASTY, run=NASTY)
    sweep = [one(op=NASTY, variant=NASTY, shape=(n,), run=NASTY, ulp_rms=1.0) for n in range(1, 6)]
    results = Results([nasty, failed, *sweep], {NASTY: {**RUN, "gpu": NASTY, NASTY: NASTY}})
    report = check(NASTY)
    report.ops[0].results.append(Result(NASTY, NASTY, NASTY, text=NASTY, script=NASTY))
    report.facts[NASTY] = NASTY
    text = page(results, [report], NASTY)
    found = Page(text)
    assert len(found.all("script")) == 1
    assert NASTY not in text
    assert "<script>alert" not in text
    assert found.tables[f"Rows of {NASTY}"][1][1] == NASTY
    known = {
        "class",
        "x",
        "y",
        "d",
        "title",
        "aria-label",
        "href",
        "id",
        "viewbox",
        "role",
        "width",
    }
    known |= {
        "height",
        "points",
        "cx",
        "cy",
        "r",
        "x1",
        "x2",
        "y1",
        "y2",
        "open",
        "tabindex",
        "scope",
    }
    known |= {"lang", "charset", "name", "content", "aria-hidden"}
    assert {k for _, a in found.elements for k in a} <= known


def test_page_needs_nothing_else_and_no_script() -> None:
    text = page(many(), [check()], "title")
    found = Page(text)
    assert not re.search(r"https?:|//[a-z]|@import|url\(|\bsrc=", text)
    links = [a["href"] for a in found.all("a")]
    ids = {f"#{a['id']}" for _, a in found.elements if a.get("id")}
    assert len(links) == 9
    assert set(links) == ids
    assert not {t for t, _ in found.elements} & {"link", "img", "iframe", "button", "input", "form"}
    assert not any("hidden" in a or "style" in a for _, a in found.elements)  # nothing waits for it
    assert "prefers-color-scheme: dark" in text


def test_plots_have_names() -> None:
    text = page(many(), [check()], "title")
    plots = re.findall(r"<svg[^>]*>(?=<title>)(.{40})", text)
    assert len(plots) == text.count('role="img"') == text.count("<desc>") > 20
    assert all("viewbox" in a for t, a in Page(text).elements if t == "svg")


def test_two_thousand_rows_are_less_than_two_megabytes() -> None:
    results = many(copies=3)
    results.rows = results.rows[:2000]
    assert len(page(results, [], "title").encode()) < 2_000_000


def test_page_of_nothing_and_of_little() -> None:
    assert "nothing to show" in page(Results(), [], "title")
    assert 'id="roofline"' not in page(Results(), [check()], "title")
    assert 'id="reliability"' in page(Results(), [check()], "title")
    assert "1 measurement of 1 op on NVIDIA H200" in page(some(one()), [], "title")
    page(some(one(us=math.nan), one(op="a", us=-1.0), one(op="b", bytes=0, ceilings={})), [], "t")


# --- files and the command ------------------------------------------------------------------------

app = typer.Typer()
app.command()(report)


def run(*words: object) -> str:
    done = CliRunner().invoke(app, [str(w) for w in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def put(file: Path, data: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(data if isinstance(data, str) else json.dumps(data))
    return file


def test_command_takes_files_and_folders_of_both_kinds(tmp_path: Path) -> None:
    some(one()).write(tmp_path / "results" / "h200" / "relu.json")
    some(one("other")).write(tmp_path / "results" / "h200" / "other.json")
    scores = put(tmp_path / "scores.json", check().as_json())
    page_file = tmp_path / "new" / "page.html"
    said = run(tmp_path / "results", scores, scores, "-o", page_file, "--title", "Mine & yours")
    text = page_file.read_text(encoding="utf-8")
    size = f"{len(text.encode()) / 1e3:.0f} KB"
    assert f"wrote {page_file}: 2 measurements, 1 check, {size}" in said.replace("\n", "")
    assert {"Rows of relu", "Rows of other", "Scoreboard"} <= set(Page(text).tables)
    assert "<h1>Mine &amp; yours</h1>" in text


def test_usual_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OpforgeError, match="no folder benchmarks/results here; make some with"):
        load([])
    some(one()).write(Path("benchmarks/results/h200/relu.json"))
    run()
    assert "Rows of relu" in Page(Path("report.html").read_text(encoding="utf-8")).tables


def test_later_files_and_later_checks_count(tmp_path: Path) -> None:
    some(one(us=1.0)).write(tmp_path / "z.json")
    some(one(us=2.0)).write(tmp_path / "a.json")
    new, old = check(), check(outcome="passed")
    new.facts["time"], old.facts["time"] = "2026-11-15", "2026-11-01"
    files = [put(tmp_path / "new", new.as_json()), put(tmp_path / "old", old.as_json())]
    results, reports = load([tmp_path / "z.json", tmp_path / "a.json", *files])
    assert [r.us for r in results.rows] == [2.0]
    assert [r.facts["time"] for r in reports] == ["2026-11-01", "2026-11-15"]


GOOD = {"schema": 1, "runs": {"r1": {}}, "rows": [one().as_json()]}
BAD = [
    ("{", "it is not JSON"),
    ([{"op": "relu"}], "no schema number"),
    ({"schema": 99, "rows": [], "runs": {}}, "a newer opforge"),
    ({"schema": 1}, "damaged"),
    ({**GOOD, "rows": [{**one().as_json(), "us": "fast"}]}, "a field that must be a number is not"),
    ({**GOOD, "rows": [{**one().as_json(), "ceilings": {"copy": None}}]}, "must be a number"),
    ({**GOOD, "rows": [{**one().as_json(), "note": 3}]}, "a field that must be text is not"),
    ({"ops": [{"op": "relu"}], "facts": {}}, "looks like a report of `opforge check --json`"),
    ({"ops": [3], "facts": {}}, "damaged or from another version"),
    ({"ops": {}, "facts": []}, "damaged or from another version"),
]


@pytest.mark.parametrize(("data", "message"), BAD)
def test_bad_files_are_named(data: object, message: str, tmp_path: Path) -> None:
    file = put(tmp_path / "bad.json", data)
    with pytest.raises(OpforgeError, match=message) as caught:
        load([file])
    assert str(file) in str(caught.value)


def test_missing_files_and_empty_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(OpforgeError, match="there are no results at"):
        load([tmp_path / "none.json"])
    with pytest.raises(OpforgeError, match=r"has no results .* make some with"):
        load([tmp_path])


def test_two_machines_are_not_put_side_by_side(tmp_path: Path) -> None:
    other = Results([one("other", run="r2")], {"r2": {"gpu": "NVIDIA A100"}})
    other.write(tmp_path / "a.json")
    some(one()).write(tmp_path / "b.json")
    with pytest.raises(OpforgeError, match=r"several machines \(NVIDIA A100, NVIDIA H200\)"):
        load([tmp_path])


# --- the script -----------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium")


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_sorting_and_filtering_in_a_browser(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    shapes = [(32768, 1024), (16384, 4096), (8192, 2048), (4096, 50257)]
    rows = [one(us=u, shape=s) for u, s in zip((9.0, 100.0, None, 20.0), shapes, strict=True)]
    rows[2].error = "out of memory"
    act = """
    const table = document.querySelector("#every-measurement table");
    const read = () => Array.from(table.tBodies[0].rows).filter((r) => !r.hidden)
      .map((r) => r.cells[3].textContent.split(" ")[0]).join(" ");
    const out = [];
    for (const column of [5, 5, 3]) {
      table.tHead.rows[0].cells[column].querySelector("button").click();
      out.push(read());
    }
    const input = document.querySelector(".filter input");
    input.value = "RELU 8192";
    input.dispatchEvent(new Event("input"));
    out.push(read());
    document.title = out.join("|");
    """
    file = tmp_path / "page.html"
    text = page(some(*rows), [], "title").replace("</body>", f"<script>{act}</script></body>")
    file.write_text(text)
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}/u",
    ]
    done = subprocess.run(
        [*command, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=PATIENCE
    )
    title = re.search("<title>(.*?)</title>", done.stdout)
    assert title is not None, done.stderr
    up, down, shape, filtered = title[1].split("|")
    assert up == "32768 4096 16384 8192"  # 9, 20, 100 µs, then the one that was not timed
    assert down == "8192 16384 4096 32768"
    assert shape == "8192 32768 16384 4096"  # by the number of elements
    assert filtered == "8192"
