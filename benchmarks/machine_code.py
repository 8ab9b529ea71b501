# SPDX-License-Identifier: Apache-2.0
"""Notes which instructions the CUDA kernels of the built-in ops compile to, at this commit.

    python benchmarks/machine_code.py COMMIT

compiles them for 9.0 and adds a digest per op to benchmarks/machine_code.json. Two commits with one
digest have the same instructions, whatever was renamed or moved in between, so that results of
the first hold for the second. It needs nvcc, cuobjdump and nvdisasm, and no GPU.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

from opforge import discover
from opforge.build import compile, tools
from opforge.build.plan import plan_all
from opforge.build.targets import has_sources

FILE = Path(__file__).with_suffix(".json")
ARCH = "9.0"


def digests() -> dict[str, str]:
    """A digest of all instructions per op, whatever its kernels are called."""
    ops = [op for op in map(discover.find, discover.builtin_names()) if has_sources(op, "cuda")]
    plans = [plan for op in ops for plan in plan_all(op, "cuda", ARCH)]
    found: dict[str, set[str]] = {op.name: set() for op in ops}
    for plan, library in zip(plans, compile.build(plans), strict=True):
        found[plan.op] |= functions(library.path)
    return {name: digest(codes) for name, codes in found.items()}


def functions(library: Path) -> set[str]:
    """A digest of the instructions of each kernel in a library; none if it has no kernels."""
    program = tools.find("cuobjdump")
    if program is None:
        sys.exit(f"no cuobjdump: {tools.REMEDY['cuobjdump']}")
    dump = subprocess.run([program, "-sass", str(library)], capture_output=True, text=True).stdout
    bodies = [body.partition("\n")[2] for body in re.split(r"\n\s*Function : ", dump)[1:]]
    return {digest(re.findall(r"/\*[0-9a-f]{4,5}\*/\s+(.*?;)", body)) for body in bodies}


def digest(lines: list[str] | set[str]) -> str:
    """The same for the same lines; of a set, in any order."""
    ordered = sorted(lines) if isinstance(lines, set) else lines
    return hashlib.sha256("\n".join(ordered).encode()).hexdigest()[:16]


def main() -> None:
    """Add the commit to the file."""
    (commit,) = sys.argv[1:]
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    known[commit] = digests()
    FILE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
