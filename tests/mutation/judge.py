# SPDX-License-Identifier: Apache-2.0
"""Judges mutants of one copy of the package: started by run.py, a line of JSON in, one out.

It imports torch once and forks for everything that runs a mutant: a child that crashes or hangs has
noticed the fault, and leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from opforge import Make, discover, sim
from opforge.build import compile
from opforge.build.plan import plan, plan_simulator
from opforge.check.place import Place
from opforge.check.results import FAILED
from opforge.check.row import Trial, find
from opforge.check.worker import run
from opforge.op import Op

# Rows of the quick check that tell most faults in seconds; the rest of it comes after them.
FIRST = ("own-cases", "gradients", "odd-sizes", "strides", "narrow-gradient", "empty")


def build(op: Op, place: str) -> str:
    """Builds the op for a place; a digest of its machine code."""
    plans = [plan(op, place)] + ([plan_simulator()] if place == "sim" else [])
    library = compile.build(plans, quiet=True)[0].path
    code = hashlib.sha256()
    with tempfile.NamedTemporaryFile() as out:
        for section in (".text", ".rodata"):
            copy = ["objcopy", "-O", "binary", f"--only-section={section}"]
            subprocess.run([*copy, str(library), out.name], check=True)
            code.update(Path(out.name).read_bytes())
    return code.hexdigest()


def first_rows(op: Op, place: str) -> str:
    """The row that notices the fault, or nothing."""
    for row in find(list(FIRST)):
        print(row.name, flush=True)  # if it crashes there
        if run(row, Trial(op, Place(place))).outcome == FAILED:
            return row.name
    return ""


def baseline(op: Op, place: str) -> str:
    """What an author has without opforge: opcheck and gradcheck on the record's cases."""
    around = sim.active if place == "sim" else contextlib.nullcontext
    overload = getattr(getattr(torch.ops, op.namespace), op.name).default
    try:
        for case in op.iter_cases(Make(torch.float32, requires_grad=True)):
            with around():
                torch.library.opcheck(overload, case)
        for case in op.iter_cases(Make(torch.float64, requires_grad=True)):
            tensors = [a for a in case if isinstance(a, torch.Tensor) and a.requires_grad]
            if tensors and sum(t.numel() for t in tensors) <= 200:
                with around():
                    torch.autograd.gradcheck(overload, case)
    except Exception as error:
        return type(error).__name__
    return ""


def apart(work: Callable[[Op, str], str], op: str, place: str, limit: float) -> tuple[str, str]:
    """Runs it in a child: how it ended ("done", "raised", "crashed", "hung") and what it said."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os.dup2(writing, 1)
        os.setpgid(0, 0)
        warnings.simplefilter("ignore")
        code = 0
        try:
            said = work(discover.find(op), place)
        except Exception as error:
            code, said = 1, f"{type(error).__name__}: {error}".replace("\n", " ")
        os.write(1, f"\n{said}".encode())
        os._exit(code)
    os.close(writing)
    end, status = time.monotonic() + limit, None
    while status is None and time.monotonic() < end:
        done, code = os.waitpid(child, os.WNOHANG)
        status = code if done else None
        time.sleep(0.02)
    if status is None:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        lines = pipe.read().rstrip("\n" if status != 0 else "").split("\n")
    if status is None:
        return "hung", lines[-1]
    how = "crashed" if os.WIFSIGNALED(status) else "raised" if status else "done"
    return how, lines[-1]


def judge(op: str, place: str, original: str) -> dict[str, Any]:
    """What is known of a mutant before the whole quick check has run."""
    how, code = apart(build, op, place, 900)
    if how != "done":
        return {"code": None}
    if code == original or not original:
        return {"code": code}
    how, row = apart(first_rows, op, place, 300)
    if how == "raised":  # rows raise nothing: what runs them is broken
        raise RuntimeError(row)
    if how != "done":
        row = f"{row}: {how}"
    alone, said = apart(baseline, op, place, 300)
    return {"code": code, "row": row, "baseline": said if alone == "done" else alone}


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(judge(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
