# SPDX-License-Identifier: Apache-2.0
"""Runs an op's cases on a GPU under compute-sanitizer's four tools."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from opforge.build import tools
from opforge.check.place import Place
from opforge.check.row import Fault, NotRun, Trial
from opforge.discover import where
from opforge.op import Op

_SECONDS = 580  # for one tool
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


def run(op: Op, seed: int) -> str:
    """Run all tools. Raises Fault with the message of the first tool that finds something."""
    program = tools.find("compute-sanitizer")
    if program is None:
        raise NotRun("compute-sanitizer is not installed; it comes with the CUDA toolkit")
    for tool in TOOLS:
        options = ["--tool", tool, "--error-exitcode", "86", "--launch-timeout", "300"]
        # Torch's own kernels are left out, because they take long. initcheck must see what they
        # initialise, and kernels of a user's op can have any name.
        if tool != "initcheck" and op.namespace == "opforge":
            options += ["--kernel-regex", "kns=opforge"]
        command = [program, *options, sys.executable, "-m", __name__, where(op), str(seed)]
        environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, timeout=_SECONDS
            )
        except subprocess.TimeoutExpired:
            raise NotRun(f"{tool} took more than {_SECONDS} s") from None
        summary = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", done.stdout)
        if done.returncode == 0 and summary and summary[1] == "0":
            continue
        words = [line for line in done.stdout.splitlines() if line.startswith("=========")]
        if summary and summary[1] != "0":
            raise Fault(f"{tool}: {summary[1]} errors\n" + "\n".join(words[:20]))
        raise NotRun(f"{tool} could not run: {(done.stderr or done.stdout).strip()[-400:]}")
    return f"{', '.join(TOOLS)}: 0 errors"


def main() -> None:
    """The program that runs under the sanitizer: all cases, forward and backward, two dtypes."""
    from opforge import discover

    trial = Trial(discover.find(sys.argv[1]), Place("cuda"), int(sys.argv[2]))
    for s in trial.own():
        s.results(s.has_gradient())


if __name__ == "__main__":
    main()
