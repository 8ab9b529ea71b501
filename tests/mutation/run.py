# SPDX-License-Identifier: Apache-2.0
"""How many generated faults does `opforge check` notice?

``python tests/mutation/run.py --count 300 --json FILE`` mutates the kernels of built-in ops, builds
each mutant and checks it, quick; and with opcheck and gradcheck for comparison. A mutant that does
not compile is left out, and so is one whose machine code is that of the original: it is no fault.
FILE is written as results come, and a run goes on from it. ``--full`` is for afterwards: it checks
in full what survived in FILE and is not explained as harmless.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from mutants import SOURCE, Mutant, choose

EXPLAINED = json.loads((Path(__file__).parent / "explained.json").read_text())
OPS = sorted(p.parent.name for p in SOURCE.glob("ops/*/cpu.cpp"))
HARMLESS = {(e["name"], e["new"]) for e in EXPLAINED if e["harmless"]}
_KILLED, _SURVIVED, _STILLBORN, _EQUIVALENT = "killed", "survived", "stillborn", "equivalent"
_UNFINISHED = "unfinished"  # a full check that ran out of time, or fails the original: who knows
_SECONDS = 900  # that a check may take


class Workshop:
    """A copy of the package that is mutated, and a cache of its own, beside others."""

    def __init__(self, folder: Path, jobs: str) -> None:
        self.folder = folder
        self._judge: subprocess.Popen[str] | None = None
        self.package = folder / "opforge"
        shutil.copytree(SOURCE, self.package)
        self.environment = {
            **os.environ,
            "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}",
            "OPFORGE_CACHE_DIR": str(folder / "cache"),
            "MAX_JOBS": jobs,
            "OMP_NUM_THREADS": "2",
            "OMP_WAIT_POLICY": "passive",
        }

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Any:
        """Within it, the copy has the fault."""
        path = self.package / mutant.file
        text = path.read_text()
        lines = text.splitlines()
        assert lines[mutant.line - 1] == mutant.old
        lines[mutant.line - 1] = mutant.new
        path.write_text("\n".join(lines) + "\n")
        try:
            yield
        finally:
            path.write_text(text)

    def run(self, *command: str, limit: float) -> tuple[int, str]:
        """Exit code and output; 124 if it takes too long."""
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(
                [sys.executable, *command],
                stdout=said,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
                code = 124
            said.seek(0)
            return code, said.read()

    def judge(self, op: str, place: str, original: str) -> dict[str, Any]:
        """Build it, run the first rows and the baseline; see judge.py."""
        if self._judge is None or self._judge.poll() is not None:
            self._judge = subprocess.Popen(
                [sys.executable, str(Path(__file__).parent / "judge.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self.environment,
                text=True,
            )
        assert self._judge.stdin is not None
        assert self._judge.stdout is not None
        job = {"op": op, "place": place, "original": original}
        print(json.dumps(job), file=self._judge.stdin, flush=True)
        found: dict[str, Any] = json.loads(self._judge.stdout.readline())
        return found

    def checked(self, mutant: Mutant, full: bool, only: str = "") -> tuple[str, str]:
        """What the check, or one row of it, says about the mutant, and the row that says it."""
        options = ["--on", mutant.place, "--stop", *(["--full"] if full else [])]
        options += ["--only", only] if only else []
        report = self.folder / "report.json"
        report.unlink(missing_ok=True)
        code, said = self.run(
            "-m", "opforge", "check", mutant.op, *options, "--json", str(report), limit=_SECONDS
        )
        if code == 124:
            return _UNFINISHED if full else _KILLED, f"no end after {_SECONDS} s"
        if code == 0:
            return _SURVIVED, ""
        with contextlib.suppress(OSError, ValueError):
            for one in json.loads(report.read_text())["ops"]:
                for result in one["results"]:
                    if result["outcome"] == "failed":
                        return _KILLED, result["row"]
        return _KILLED, " ".join(said.split())[-120:]


def judge(shop: Workshop, mutant: Mutant, originals: dict[str, str]) -> dict[str, Any]:
    """Everything about one mutant but the full check."""
    started = time.monotonic()
    result: dict[str, Any] = {**asdict(mutant), "name": mutant.name}
    key = f"{mutant.op} {mutant.place}"
    if key not in originals:
        originals[key] = shop.judge(mutant.op, mutant.place, "")["code"]
    with shop.mutated(mutant):
        found = shop.judge(mutant.op, mutant.place, originals[key])
        if found["code"] in (None, originals[key]):
            result["quick"] = _STILLBORN if found["code"] is None else _EQUIVALENT
        else:
            result["baseline"] = _KILLED if found["baseline"] else _SURVIVED
            result["quick"], result["row"] = _KILLED, found["row"]
            if not found["row"]:
                result["quick"], result["row"] = shop.checked(mutant, full=False)
    result["seconds"] = round(time.monotonic() - started, 1)
    return result


def judge_in_full(shop: Workshop, mutant: Mutant, result: dict[str, Any]) -> dict[str, Any]:
    """What is known of a survivor, and what the full check says."""
    with shop.mutated(mutant):
        verdict, row = shop.checked(mutant, full=True)
    if verdict == _KILLED and shop.checked(mutant, full=True, only=row)[0] != _SURVIVED:
        verdict, row = _UNFINISHED, f"{row}: fails without the fault, too"
    return {**result, "full": verdict, "row": row}


def survives(result: dict[str, Any]) -> bool:
    """Whether a fault, as far as anybody knows, survived the quick check."""
    return result["quick"] == _SURVIVED and (result["name"], result["new"]) not in HARMLESS


def summary(results: list[dict[str, Any]]) -> str:
    """The shares, in words."""
    faults = [r for r in results if r["quick"] in (_KILLED, _SURVIVED)]
    count = Counter(r["quick"] for r in results)
    lines = [
        f"{len(results)} mutants: {count[_STILLBORN]} do not compile, {count[_EQUIVALENT]} are the "
        f"original's machine code, {len(faults)} are judged"
    ]
    if faults:
        quick = sum(r["quick"] == _KILLED for r in faults)
        full = sum(_KILLED in (r["quick"], r.get("full")) for r in faults)
        baseline = sum(r["baseline"] == _KILLED for r in faults)
        for what, killed in (
            ("the quick check", quick),
            ("the full check", full),
            ("opcheck and gradcheck", baseline),
        ):
            lines.append(f"{what} notices {killed} of {len(faults)}: {killed / len(faults):.1%}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="mutants")
    parser.add_argument("--ops", nargs="*", default=OPS)
    parser.add_argument("--on", nargs="*", default=["cpu", "sim"], help="of the mutants, these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=max((os.cpu_count() or 2) // 2, 1))
    parser.add_argument("--full", action="store_true", help="those that survived, in full")
    parser.add_argument("--survivors", action="store_true", help="those that survived, once more")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no mutant after so many")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    given = parser.parse_args()
    results: list[dict[str, Any]] = []
    torchs = {version("torch")}
    if given.json.exists():
        before = json.loads(given.json.read_text())
        results = before["mutants"]
        torchs |= set(before["facts"]["torch"].split(", "))
    if given.survivors:
        results[:] = [r for r in results if not survives(r)]
    known = {(r["name"], r["new"]): r for r in results}
    if given.full:
        left = [r for r in results if survives(r) and "full" not in r and r["op"] in given.ops]
        todo = [Mutant(**{f.name: r[f.name] for f in fields(Mutant)}) for r in left]
    else:
        chosen = choose(given.ops, given.count, given.seed)
        todo = [m for m in chosen if (m.name, m.new) not in known]
    todo = [m for m in todo if m.place in given.on]
    deadline = time.monotonic() + 60 * given.minutes
    digest = hashlib.sha256(
        b"".join(p.read_bytes() for p in sorted(SOURCE.rglob("*")) if p.is_file())
    ).hexdigest()[:12]
    facts = {
        "count": given.count,
        "seed": given.seed,
        "sources": digest,
        "torch": ", ".join(sorted(torchs)),
        "time": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }
    with tempfile.TemporaryDirectory() as folder:

        def work(number: int) -> None:
            shop = Workshop(Path(folder) / str(number), "1")
            originals: dict[str, str] = {}
            while todo and time.monotonic() < deadline:
                mutant = todo.pop(0)
                if given.full:
                    result = judge_in_full(shop, mutant, known[mutant.name, mutant.new])
                    results.remove(known[mutant.name, mutant.new])
                else:
                    result = judge(shop, mutant, originals)
                results.append(result)
                verdict = result.get("full", result["quick"])
                print(f"{verdict:10} {result.get('row', ''):22} {mutant.name}", flush=True)
                results.sort(key=lambda r: r["name"])
                text = json.dumps({"facts": facts, "mutants": results}, indent=1)
                given.json.write_text(text + "\n")

        with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
            for done in [pool.submit(work, i) for i in range(given.jobs)]:
                done.result()
    print(summary(results))


if __name__ == "__main__":
    main()
