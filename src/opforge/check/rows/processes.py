# SPDX-License-Identifier: Apache-2.0
"""Rows that need a process of their own: importing, forking, a first call from many threads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile

from opforge.build import toolchain
from opforge.check.row import Fault, NotApplicable, NotRun, Trial, row
from opforge.discover import where
from opforge.errors import ToolchainError

_IMPORT = """
import os, sys
os.environ["OPFORGE_CACHE_DIR"] = sys.argv[3]
import torch, opforge
from opforge import Make, discover
op = discover.find(sys.argv[1])
assert not torch.cuda.is_initialized(), "importing opforge initialised CUDA"
assert not os.listdir(sys.argv[3]), "importing opforge built or wrote something"
os.environ.pop("OPFORGE_CACHE_DIR")
if sys.argv[4]:
    os.environ["OPFORGE_CACHE_DIR"] = sys.argv[4]
child = os.fork()
if child == 0:
    status = 1
    try:
        case = next(iter(op.iter_cases(Make(device=sys.argv[2]))))
        op(*case)
        status = 0
    finally:
        os._exit(status)
_, status = os.waitpid(child, 0)
assert status == 0, "a child forked after the import could not call the op"
"""

_THREADS = """
import sys, threading
from opforge import Make, discover
op = discover.find(sys.argv[1])
case = next(iter(op.iter_cases(Make())))
barrier, failures = threading.Barrier(16), []
def first_call():
    barrier.wait()
    try:
        op(*case)
    except Exception as error:
        failures.append(error)
threads = [threading.Thread(target=first_call) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failures, failures[0]
"""


def _run(code: str, *arguments: str, **settings: str) -> str:
    """Run a program in a process of its own; returns what it wrote to stderr."""
    environment = {**os.environ, **settings}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise Fault(lines[-1])
    return done.stderr


@row(
    45,
    "import",
    "c g",
    "An import that touches the GPU breaks fork, and with it every data loader.",
    star=True,
)
def importing(t: Trial) -> None:
    """Importing initialises no CUDA and builds nothing; a forked child can call the op."""
    if not t.full:
        raise NotRun("needs a process of its own; --full runs it")
    with tempfile.TemporaryDirectory() as empty:
        cache = os.environ.get("OPFORGE_CACHE_DIR", "")
        _run(_IMPORT, where(t.op), t.place.device, empty, cache)
    t.note = "in a process of its own"


@row(
    47,
    "threads",
    "c",
    "If sixteen threads make the first call at once, there must be one build, and all must "
    "succeed.",
)
def threads(t: Trial) -> None:
    """Sixteen threads make the first call with an empty cache."""
    if not t.place.target.sources(t.op):
        raise NotApplicable("it has no CPU kernel to build")
    if not t.full:
        raise NotRun("builds in a process of its own; --full runs it")
    try:
        toolchain.find_cxx()
    except ToolchainError as error:
        raise NotRun(str(error)) from None
    with tempfile.TemporaryDirectory() as empty:
        said = _run(
            _THREADS, where(t.op), OPFORGE_CACHE_DIR=empty, OPFORGE_PREBUILT="", OPFORGE_JIT="1"
        )
    t.note = "16 threads, one build"
    built = re.findall(r"opforge: built (.*) in ", said)  # parts may be built one by one
    if not built or len(built) != len(set(built)):
        raise Fault(f"{len(built)} builds instead of one: {said.strip()}")
