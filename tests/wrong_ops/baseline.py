# SPDX-License-Identifier: Apache-2.0
"""What an author has without opforge: which wrong ops do opcheck and gradcheck find?

``python tests/wrong_ops/baseline.py [--json FILE] [OP…]``. Each op runs in a process of its own, on
CPU tensors: torch.library.opcheck on every case in float32, then torch.autograd.gradcheck in
float64 on the small ones. Ops that have only CUDA code run it in the simulator.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SMALL = 200  # elements that gradcheck moves one by one
TIMEOUT = 600


def attempt(check: Any, *args: Any) -> str | None:
    """What a check says is wrong, in a line."""
    try:
        check(*args)
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return None


def examine(folder: Path) -> None:
    """In the child: print a line of JSON per tool that finds something."""
    import torch

    from opforge import Make, discover, sim

    warnings.simplefilter("ignore")
    op = discover.load_folder(folder).op
    overload = getattr(getattr(torch.ops, op.namespace), op.name).default
    place = sim.active if (folder / "cuda.cu").exists() else contextlib.nullcontext

    def tell(tool: str, found: str | None) -> None:
        if found:
            print(json.dumps([tool, found]), flush=True)

    for case in op.iter_cases(Make(torch.float32, requires_grad=True)):
        print(json.dumps(["opcheck", None]), flush=True)  # so that a crash has a name
        with place():
            tell("opcheck", attempt(torch.library.opcheck, overload, case))
    doubles = Make(torch.float64, requires_grad=True)
    for case in op.iter_cases(doubles) if torch.float64 in op.dtypes else ():
        tensors = [a for a in case if isinstance(a, torch.Tensor) and a.requires_grad]
        if sum(t.numel() for t in tensors) <= SMALL:
            print(json.dumps(["gradcheck", None]), flush=True)
            with place():
                tell("gradcheck", attempt(torch.autograd.gradcheck, overload, case))


def run(folder: Path) -> dict[str, str]:
    """The tools that find something wrong with an op, and what they say first."""
    command = [sys.executable, __file__, "--child", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    found: dict[str, str] = {}
    for tool, text in said:
        if text:
            found.setdefault(tool, text)
    if done.returncode < 0 and said:  # a signal
        found.setdefault(said[-1][0], f"crashed with signal {-done.returncode}")
    elif done.returncode or not said:
        raise RuntimeError(f"{folder.name}: {done.stdout}{done.stderr}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ops", nargs="*", metavar="OP")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return examine(given.child)
    names = given.ops or sorted(p.parent.name for p in FOLDER.glob("*/op.py"))
    results = {}
    for name in names:
        results[name] = found = run(FOLDER / name)
        print(f"{name:32} {' and '.join(found) or 'neither'}", flush=True)
    for tool in ("opcheck", "gradcheck"):
        print(f"{tool} finds {sum(tool in f for f in results.values())} of {len(results)}")
    print(f"neither finds {sum(not f for f in results.values())}")
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
