# SPDX-License-Identifier: Apache-2.0
"""The process that measures for ``--jobs``: it prepares beside others, and times alone.

Started by rounds.py. It says None and waits for an answer when it has to be alone, and again when
it has been; then the rows.
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
from opforge.bench import clock as clocks  # before any op: it takes the clocks as they are
from opforge.bench.measure import Workload, measure
from opforge.errors import OpforgeError


def main() -> None:
    """Measure what comes in, until nothing does."""
    pipe: Connection[Any, Any] = Connection(int(sys.argv[1]))

    @contextlib.contextmanager
    def alone() -> Iterator[None]:
        pipe.send(None)
        pipe.recv()
        yield
        pipe.send(None)
        pipe.recv()

    device, wanted, run = pipe.recv()
    torch.ones(1, device=device)  # the first use of a GPU takes long, and need not be alone
    with alone():
        clock = clocks.make_clock(device)
    pipe.send([])
    while True:
        name, *what, patience = pipe.recv()
        try:
            work = Workload(discover.find(name), *what)
            rows = measure(work, clock, wanted, patience, run, alone=alone)
        except OpforgeError as error:  # nothing runs on the GPU in this process any more
            pipe.send(str(error))
            return
        if device == "cuda":
            torch.cuda.empty_cache()  # others need the memory
        pipe.send(rows)


if __name__ == "__main__":
    with contextlib.suppress(EOFError, BrokenPipeError):  # whoever asked is gone
        main()
    os._exit(0)  # everything is said; torch takes a second to tidy up
