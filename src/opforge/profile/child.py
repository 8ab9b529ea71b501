# SPDX-License-Identifier: Apache-2.0
"""The process that runs under Nsight Compute or Nsight Systems: it makes the calls of a request.

``python -m opforge.profile.child OP SHAPE DTYPE [--backward] [--facts FILE]``
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from opforge.errors import OpforgeError
from opforge.profile import request as requests
from opforge.profile.nvtx import nvtx

# Name of the kernel of torch.cuda._sleep. One before each call separates the launches of calls.
MARKER = "spin_kernel"


def main() -> None:
    """Make inputs, warm up, then call between cudaProfilerStart and cudaProfilerStop."""
    parser = argparse.ArgumentParser(prog="python -m opforge.profile.child")
    parser.add_argument("op")
    parser.add_argument("shape")
    parser.add_argument("dtype")
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--facts", type=Path, help="write the calls to this file")
    given = parser.parse_args()
    try:
        facts = _run(requests.resolve(given.op, given.shape, given.dtype, given.backward))
    except (OpforgeError, torch.OutOfMemoryError) as error:
        print(f"opforge: {error}", file=sys.stderr)
        if given.facts is not None:
            given.facts.write_text(json.dumps({"error": str(error)}))
        sys.exit(2)
    if given.facts is not None:
        given.facts.write_text(json.dumps({"calls": facts}))


def _run(request: requests.Request) -> list[dict[str, object]]:
    runs = requests.runs(request, "cuda")
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    with nvtx():
        for run in runs:
            torch.cuda._sleep(1)
            run.call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    return [{"what": run.what, "model_bytes": run.model_bytes} for run in runs]


if __name__ == "__main__":
    main()
