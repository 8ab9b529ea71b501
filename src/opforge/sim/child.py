# SPDX-License-Identifier: Apache-2.0
"""The process in which ``opforge sim`` runs kernels. If a kernel crashes, only this process ends.

command.py starts it. It reports each run before it starts, and the outcome of each op, as lines of
JSON. They go to a separate pipe, because kernels may print.
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
    """Simulate the requested ops one after the other."""
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
    os._exit(0)  # everything is written, and torch takes a second to shut down
