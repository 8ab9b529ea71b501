# SPDX-License-Identifier: Apache-2.0
"""Counts false alarms: the quick check of ops that are right, over many seeds.

    python tests/right_ops/seeds.py                              # the ops of this folder, 100 seeds
    python tests/right_ops/seeds.py --ops rms_norm softmax --seeds 300 --on cpu --out ops.json

Each op has a process of its own. In it the rows whose outcome depends on the values run for every
seed, those that compare the same values in other layouts for every tenth, all others at the end; of
built-in ops these are left to the check's own tests. Results are written after every row, and a
second run goes on where the first one ended (--fresh begins again). With --minutes the time left is
shared among the ops left.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch

import opforge
from opforge import discover
from opforge.build.targets import has_sources
from opforge.check import row as rows
from opforge.check import runner, worker
from opforge.check.options import Options
from opforge.check.place import Place
from opforge.check.results import FAILED, NOT_APPLICABLE, PASSED
from opforge.op import Op
from opforge.terminal.processes import end_with_parent, ending

FOLDER = Path(__file__).parent
PATIENCE = 300.0  # seconds that a row may take
# As the check's own processes have it.
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "passive",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
    "KINETO_LOG_LEVEL": "99",
    "HYPOTHESIS_STORAGE_DIRECTORY": str(Path(tempfile.gettempdir()) / "hypothesis"),
}
# Rows whose outcome depends on the values, and on the rule for the allowed error.
EVERY = (
    *("own-cases", "ranges", "numbers", "scalars", "odd-sizes", "expanded", "expanded-gradient"),
    *("one-nan", "special-values", "masked-rows", "cancellation", "eps", "dropout", "gradients"),
    *("double-backward", "gradient-values", "backward-reference", "statistics", "pairs"),
    *("randomness", "random"),
)
# These compare with the truth, too: the same values in another layout, or very many of them.
TENTH = (
    *("empty", "offset", "strides", "negative-view", "narrow-gradient", "missing-gradient"),
    *("many-rows", "long-row", "mixed-dtypes", "changed-before-backward", "strided-parameters"),
    *("vmap", "sanitizer", "guard-pages", "thread-counts", "ranks"),
)


def right_ops() -> list[str]:
    """The ops of this folder."""
    return sorted(p.parent.name for p in FOLDER.glob("*/op.py"))


def find(name: str) -> Op:
    """An op of this folder, a built-in one, or one by its path."""
    return discover.find(str(FOLDER / name) if name in right_ops() else name)


def places_of(op: Op) -> list[str]:
    """Where an op has kernels of its own; the CPU if it has none."""
    own = [p for p, kind in (("cpu", "cpu"), ("sim", "cuda")) if has_sources(op, kind)]
    return own or (["cpu", "sim"] if op.composed is not None else ["cpu"])


# --- in the process of an op ----------------------------------------------------------------------


def run_seeds(job: dict[str, Any], out: IO[str]) -> None:
    """Run the rows of an op for each seed; every row is announced, and its result told."""
    op = find(job["op"])
    every = [row for some in job["rows"].values() for row in some]
    runner.build([op], Options(tuple(job["places"]), only=tuple(every)))

    def say(**message: Any) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    for seed in range(job["from"], job["to"]):
        cpu = time.process_time()
        worker.examine(op, seed)
        last = seed == job["to"] - 1
        steps = [k for k in job["rows"] if (last if k == "0" else seed % int(k) == 0)]
        for row in rows.find([row for step in steps for row in job["rows"][step]]):
            for place in job["places"]:
                done = seed == job["from"] and [row.name, place] in job["done"]
                if rows.applies_at(row, place) and not done:
                    say(begins=[seed, row.name, place])
                    result = worker.run(row, rows.Trial(op, Place(place), seed))
                    say(ends=result.outcome, text=result.text, script=result.script)
        say(seed=seed, cpu_seconds=time.process_time() - cpu)


# --- around it ------------------------------------------------------------------------------------


def messages(job: dict[str, Any], deadline: float) -> Iterator[dict[str, Any]]:
    """What the process of an op says; the last one, if it ends before its job does, says how."""
    reading, writing = os.pipe()
    environment = {**ENVIRONMENT, **os.environ}
    command = [sys.executable, __file__, "--job", json.dumps(job), str(writing)]
    buffer, said = b"", tempfile.TemporaryFile()  # noqa: SIM115
    child = subprocess.Popen(command, pass_fds=(writing,), env=environment, stderr=said)
    os.close(writing)
    try:
        while time.monotonic() < deadline:
            patience = min(PATIENCE, deadline - time.monotonic())
            if not select.select([reading], [], [], max(patience, 0))[0]:
                if time.monotonic() < deadline:
                    yield {"gone": f"it did not answer for {PATIENCE:.0f} s"}
                return
            got = os.read(reading, 65536)
            if not got:
                if code := child.wait():
                    said.seek(0)
                    last = said.read().decode(errors="replace").rstrip().rpartition("\n")[2]
                    yield {"gone": f"{ending(code)}; its last words: {last}"}
                return
            *lines, buffer = (buffer + got).split(b"\n")
            yield from map(json.loads, lines)
    finally:
        child.kill()
        child.wait()
        said.close()
        os.close(reading)


def run_op(entry: dict[str, Any], job: dict[str, Any], deadline: float, save: Any) -> None:
    """What is left of an op's seeds; where its process ends in a row, a new one begins after it."""
    commit = provenance()["commit"]
    if commit not in entry["commits"]:
        entry["commits"].append(commit)
    while entry["seeds"] < job["to"] and time.monotonic() < deadline:
        begun, at = time.monotonic(), None
        left = {**job, "from": entry["seeds"], "done": entry["done"]}
        for message in messages(left, deadline):
            if "begins" in message:
                at = message["begins"]
                continue
            if "gone" in message:
                message = {"ends": FAILED, "text": message["gone"], "script": ""}
                at = at or [entry["seeds"], "start", ""]
            if "ends" in message:
                keep(entry, at, message)
            if "seed" in message or at[1] == "start":  # the latter: the seed is given up
                entry["seeds"], entry["done"] = entry["seeds"] + 1, []
                entry["cpu_seconds"] += round(message.get("cpu_seconds", 0.0), 2)
            entry["seconds"] = round(entry["seconds"] + time.monotonic() - begun, 1)
            begun = time.monotonic()
            save()
            if "seed" in message:
                show(entry, job)


def keep(entry: dict[str, Any], at: list[Any], result: dict[str, Any]) -> None:
    """Take a row's result in."""
    seed, row, place = at
    entry["done"].append([row, place])
    if result["ends"] not in (PASSED, FAILED):
        kind = "not_applicable" if result["ends"] == NOT_APPLICABLE else "not_run"
        entry[kind][f"{row} {place}"] = result["text"]
        return
    count = entry["rows"].setdefault(row, {})
    count[place] = count.get(place, 0) + 1
    entry["runs"] += 1
    if result["ends"] == FAILED:
        failure = {"seed": seed, "row": row, "place": place}
        entry["failures"].append({**failure, "text": result["text"], "script": result["script"]})


def show(entry: dict[str, Any], job: dict[str, Any]) -> None:
    each, cpu = (entry[k] / entry["seeds"] for k in ("seconds", "cpu_seconds"))
    text = f"{job['op']}: {entry['seeds']} of {job['to']} seeds, {each:.1f} s each ({cpu:.1f} of a "
    text += f"processor), {entry['runs']} rows, {len(entry['failures'])} failed"
    print(text, file=sys.stderr, flush=True)


def provenance() -> dict[str, Any]:
    """What the check ran with."""

    def git(*args: str) -> str:
        done = subprocess.run(["git", "-C", FOLDER, *args], capture_output=True, text=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "../../src", ".", ":!results.json")
    return {
        "opforge": opforge.__version__,
        "commit": git("rev-parse", "--short", "HEAD") + ("+changes" if changed else ""),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": f"{platform.machine()}, {os.cpu_count()} cores",
        "check": "quick",
        "time": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ops", nargs="+", default=right_ops(), help="default: this folder's")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--on", nargs="+", choices=["cpu", "sim"], help="default: where it can")
    parser.add_argument("--rows", nargs="+", help="rows to run for every seed, and no others")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, default=FOLDER / "results.json")
    parser.add_argument("--fresh", action="store_true", help="forget results that are there")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    report: dict[str, Any] = {"ops": {}}
    if options.out.exists() and not options.fresh:
        report = json.loads(options.out.read_text())
    report = {**provenance(), "ops": report["ops"]}

    def save() -> None:
        text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
        options.out.with_suffix(".part").write_text(text)
        options.out.with_suffix(".part").replace(options.out)

    for i, name in enumerate(options.ops):
        op = find(name)
        asked = {1: options.rows} if options.rows else {1: list(EVERY), 10: list(TENTH)}
        if name in right_ops() and not options.rows:
            known = (*EVERY, *TENTH)
            asked[0] = [r.name for r in rows.all_rows() if r.name not in known]
        job = {
            "op": name,
            "places": [p for p in places_of(op) if p in (options.on or ("cpu", "sim"))],
            "rows": asked,  # by how many seeds they run once in; 0: the last
            "to": options.seeds,
        }
        new = {"commits": [], "seeds": 0, "seconds": 0.0, "runs": 0, "rows": {}, "failures": []}
        new |= {"cpu_seconds": 0.0}
        new |= {"done": [], "not_applicable": {}, "not_run": {}}  # done: of the seed under way
        new |= {"asked": [job["places"], options.rows]}
        entry = {**new, **report["ops"].get(name, {})}
        if entry["asked"] != new["asked"]:  # other rows or places: nothing to go on with
            entry = new
        report["ops"][name] = entry
        share = (end - time.monotonic()) / (len(options.ops) - i)
        run_op(entry, job, time.monotonic() + share, save)
    failed = sum(len(entry["failures"]) for entry in report["ops"].values())
    print(f"{failed} failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1] == "--job":
        end_with_parent()
        with os.fdopen(int(sys.argv[3]), "w", buffering=1) as out:
            run_seeds(json.loads(sys.argv[2]), out)
        os._exit(0)  # everything is said; torch takes a second to tidy up
    sys.exit(main())
