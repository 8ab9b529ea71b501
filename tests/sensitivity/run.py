# SPDX-License-Identifier: Apache-2.0
"""How small an error does `opforge check` notice?

``python tests/sensitivity/run.py [OP…]`` puts errors into right results of built-in ops on the CPU
(sweep.py) and keeps the largest k for which an error of 2^-k is noticed, for every result of
every case. results.json is written as results come; those of ops that are not named stay in it.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

import torch

import opforge
from opforge import discover

sys.path.insert(0, str(Path(__file__).parent))
from sweep import PARTS, Found, sweep

RESULTS = Path(__file__).parent / "results.json"


def facts() -> dict[str, str]:
    """Where, when and with what it was run."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    return {
        "opforge": opforge.__version__,
        "commit": done.stdout.strip(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "time": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M"),
    }


def read(path: Path) -> tuple[dict[str, dict[str, str]], list[Found]]:
    """What a file has: where each op was run, and what was found."""
    if not path.exists():
        return {}, []
    data = json.loads(path.read_text(encoding="utf-8"))
    return data["runs"], [Found(**f) for f in data["found"]]


def write(path: Path, runs: dict[str, dict[str, str]], found: list[Found]) -> None:
    """In the order of names, a line for each result."""
    lines = [json.dumps(asdict(f)) for f in sorted(found, key=lambda f: f.op)]
    about = ",\n".join(f"  {json.dumps(op)}: {json.dumps(runs[op])}" for op in sorted(runs))
    text = ",\n  ".join(lines)
    path.write_text(
        f'{{"runs": {{\n{about}\n }},\n "found": [\n  {text}\n ]\n}}\n', encoding="utf-8"
    )


def show(found: Found) -> None:
    """Least and most over the cases, by part."""
    seen = {part: [k for k in getattr(found, part) if k is not None] for part in PARTS}
    spans = [f"{part} {min(ks)} to {max(ks)}" for part, ks in seen.items()]
    print(f"{found.op} {found.dtype} {found.result}: {', '.join(spans)}", flush=True)


def main() -> None:
    """Run it, op by op."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ops", nargs="*", default=discover.builtin_names())
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)  # cases are small
    for name in options.ops:
        op = discover.find(name)
        new = [f for d in op.dtypes if d.is_floating_point for f in sweep(op, d)]
        for one in new:
            show(one)
        runs, old = read(options.json)
        write(options.json, {**runs, name: facts()}, [f for f in old if f.op != name] + new)


if __name__ == "__main__":
    main()
