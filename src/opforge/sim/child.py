# SPDX-License-Identifier: Apache-2.0
"""The process in which ``opforge sim`` runs kernels: one that crashes takes this one down.

Started by command.py. Every run is told before it begins, every op's outcome after it, on a pipe of
its own, because kernels may print; a line of JSON each.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from opforge import discover
from opforge.errors import OpforgeError
from opforge.sim import command
from opforge.terminal.processes import end_with_parent


def main() -> None:
    """Simulate the ops that were asked for, one after the other."""
    end_with_parent()
    job = json.loads(sys.argv[1])
    with os.fdopen(int(sys.argv[2]), "w") as out:

        def say(**message: Any) -> None:
            print(json.dumps(message), file=out, flush=True)

        def begin(what: str) -> None:
            say(run=what)

        for name in job["ops"]:
            try:
                op = discover.find(name)
                if job["traffic"]:
                    begin(op.name)
                    outcome = command.count_traffic(op)
                else:
                    outcome = command.simulate(op, job["mode"], job["seed"], begin)
            except OpforgeError as error:  # it could not run
                say(impossible=str(error))
                return
            say(outcome=asdict(outcome))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # everything is said; torch takes a second to tidy up
