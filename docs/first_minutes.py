# SPDX-License-Identifier: Apache-2.0
"""Writes docs/first-minutes.md: a first op from an idea to a wheel that runs elsewhere.

    python docs/first_minutes.py [FILE]

It runs every command that the page shows, in an empty folder with an empty cache. It needs a C++
compiler and nvcc, and no GPU.
"""

from __future__ import annotations

import difflib
import os
import shlex
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

PAGE = Path(__file__).with_name("first-minutes.md")
PATIENCE = 900  # seconds for a command
# file -> lines that are replaced, in order
Edits = dict[str, list[tuple[str, str]]]

FORMULA: Edits = {
    "op.py": [
        ("    return x * x * cap\n", "    return cap * torch.tanh(x / cap)\n"),
        (
            "    grad_x = grad_y * cap * x * 2\n",
            "    t = torch.tanh(x / cap)\n    grad_x = grad_y * (1 - t * t)\n",
        ),
        ("from opforge import", "import torch\nfrom opforge import"),
    ],
    "kernel.cuh": [
        ("    return x * x * A(cap);\n", "    return A(cap) * tanh(x / A(cap));\n"),
        (
            "    return grad_y * A(cap) * x * A(2);\n",
            "    const A t = tanh(x / A(cap));\n    return grad_y * (A(1) - t * t);\n",
        ),
    ],
    "cpu.cpp": [
        ("    return x * x * A<V>(cap);\n", "    return A<V>(cap) * tanh(x / A<V>(cap));\n"),
        (
            "    return grad_y * A<V>(cap) * x * A<V>(2);\n",
            "    const V t = tanh(x / A<V>(cap));\n    return grad_y * (1 - t * t);\n",
        ),
    ],
}
POSITIVE: Edits = {
    "op.py": [
        (
            "# EDIT 3",
            "def validate(cap: float) -> None:\n"
            '    """cap is the largest result."""\n'
            "    if not cap > 0:\n"
            '        raise ValueError(f"softcap: cap must be positive, got {cap}")\n\n\n'
            "# EDIT 3",
        ),
        (".t(), -1.5", ".t(), 1.5"),
        ("    cases=cases,\n", "    cases=cases,\n    validate=validate,\n"),
    ],
    "cuda.cu": [
        (
            "double cap) {\n  return map(",
            'double cap) {\n  OPFORGE_CHECK(cap > 0, "softcap: cap must be positive");\n'
            "  return map(",
        ),
        (
            "  check(grad_y, x);\n",
            '  check(grad_y, x);\n  OPFORGE_CHECK(cap > 0, "softcap: cap must be positive");\n',
        ),
    ],
    "cpu.cpp": [],
}
POSITIVE["cpu.cpp"] = POSITIVE["cuda.cu"]
CALL = "import torch, opforge; print(opforge.load('site/softcap')(torch.full((3,), 9.0), 2.0))"


class Transcript:
    """Runs commands in a folder and writes down what they print."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {
            **os.environ,
            "OPFORGE_CACHE_DIR": str(folder / "cache"),
            "COLUMNS": "118",
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        }
        self._parts: list[str] = []
        self.waited = 0.0

    def say(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(f"{text}\n")

    def run(self, command: str, code: int = 0, without_compilers: bool = False) -> None:
        """Add a command and what it prints. Raises if its exit code is another one."""
        environment = dict(self._environment)
        if without_compilers:
            environment |= {"CXX": "none", "OPFORGE_JIT": "0"}
            environment["OPFORGE_CACHE_DIR"] = str(self._folder / "other cache")
        started = time.monotonic()
        done = subprocess.run(
            shlex.split(command),
            cwd=self._folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        waited = time.monotonic() - started
        if done.returncode != code:
            raise SystemExit(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        self.waited += waited
        shown = done.stdout.replace(str(self._folder), "~").strip()
        lines = [line.rstrip() for line in shown.splitlines()]
        self._parts.append("\n".join(["```", f"$ {command}", *lines, "```"]) + "\n")
        self._parts.append(f"({waited:.0f} s)\n")

    def edit(self, edits: Edits) -> None:
        """Change files of the op, and add what has changed."""
        changed: list[str] = []
        for name, pairs in edits.items():
            file = self._folder / "softcap" / name
            before = after = file.read_text(encoding="utf-8")
            for old, new in pairs:
                if after.count(old) < 1:
                    raise SystemExit(f"{file} has no {old!r}")
                after = after.replace(old, new, 1)
            file.write_text(after, encoding="utf-8")
            lines = before.splitlines(), after.splitlines()
            diff = difflib.unified_diff(*lines, f"softcap/{name}", f"softcap/{name}", n=0)
            changed += [line.rstrip() for line in diff if not line.startswith(("---", "@@"))]
        self._parts.append("\n".join(["```diff", *changed, "```"]) + "\n")

    def page(self) -> str:
        """The whole page."""
        date = datetime.now(timezone.utc).date()
        cores = len(os.sched_getaffinity(0))
        return "\n".join(
            [
                "# The first minutes with an op of your own\n",
                "From a formula to a wheel that runs elsewhere, without a GPU: a transcript.",
                "`python docs/first_minutes.py` ran every command, in an empty folder with an empty"
                f" cache, on {date}, with {cores} cores.",
                f"The seconds are those that one waits, {self.waited:.0f} in all."
                " [new.md](new.md) explains the commands.\n",
                *self._parts,
            ]
        )


def main() -> None:
    """Run the commands and write the page."""
    page = Path(sys.argv[1]).resolve() if sys.argv[1:] else PAGE
    with tempfile.TemporaryDirectory() as folder:
        transcript = Transcript(Path(folder).resolve())
        transcript.say("## Write a folder that works")
        transcript.run('opforge new softcap --schema "softcap(Tensor x, float cap) -> Tensor y"')
        transcript.say("## Change the formula\n\nsoftcap is `cap * tanh(x / cap)`.")
        transcript.edit(FORMULA)
        transcript.say("## Check it")
        transcript.run("opforge check softcap --stop", code=1)
        transcript.say("A cap of 0 has no result, so the op refuses it.")
        transcript.edit(POSITIVE)
        transcript.run("opforge check softcap")
        transcript.say("## Time it\n\nOn a machine with a GPU, it is timed there.")
        transcript.run("opforge bench softcap --shapes 1024x4096 --on cpu")
        transcript.say("## Ship it")
        transcript.run("opforge build softcap --wheel")
        (wheel,) = (transcript._folder / "dist").glob("*.whl")
        transcript.say(
            "The wheel has the libraries for the CPU and for NVIDIA GPUs. Elsewhere, it needs"
            " no compiler:"
        )
        transcript.run(f"pip install --quiet --no-deps --target site dist/{wheel.name}")
        transcript.run(f"python -c {shlex.quote(CALL)}", without_compilers=True)
        transcript.say("## What is left")
        transcript.run("opforge next softcap")
    page.write_text(transcript.page(), encoding="utf-8")


if __name__ == "__main__":
    main()
