# SPDX-License-Identifier: Apache-2.0
"""The worker process of ``--jobs``: it prepares in parallel with others, and times alone.

rounds.py starts it. When it has to be alone, it sends None and waits for an answer. It sends None
again when it is done with that, and then the rows.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch

from opforge import discover
from opforge.bench import (
    clock as clocks,
)  # before any op is loaded, which could replace the functions it takes
from opforge.bench.measure import Workload, measure
from opforge.errors import OpforgeError


def main() -> None:
    """Measure the workloads that arrive, until the pipe is closed."""
    pipe: Connection[Any, Any] = Connection(int(sys.argv[1]))

    @contextlib.contextmanager
    def alone() -> Iterator[None]:
        pipe.send(None)
        pipe.recv()
        yield
        pipe.send(None)
        pipe.recv()

    device, wanted, run = pipe.recv()
    torch.ones(1, device=device)  # the first use of a GPU is slow, and need not be alone
    with alone():
        clock = clocks.make_clock(device)
    pipe.send([])
    while True:
        name, *what, patience = pipe.recv()
        try:
            work = Workload(discover.find(name), *what)
            rows = measure(work, clock, wanted, patience, run, alone=alone)
        except OpforgeError as error:  # this process cannot use the GPU any more
            pipe.send(str(error))
            return
        if device == "cuda":
            torch.cuda.empty_cache()  # other workers need the memory
        pipe.send(rows)


if __name__ == "__main__":
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent process has ended
        main()
    os._exit(0)  # everything is sent, and torch takes a second to shut down
