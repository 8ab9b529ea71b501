# SPDX-License-Identifier: Apache-2.0
"""Runs AOTInductor on an op in its own process, to tell faults of the op from faults of torch."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from typing import Any

import torch

from opforge.check.place import Place
from opforge.check.row import Fault
from opforge.check.situation import own
from opforge.discover import where
from opforge.op import Op, as_tuple
from opforge.truth import compare

_DIFFERENT = 86  # exit code if the results differ


def check(op: Op, place: Place, number: int, dtype: torch.dtype, seed: int) -> str:
    """Compile a model with the op ahead of time, load it and run it. Returns a remark."""
    name = str(dtype).removeprefix("torch.")
    job = [where(op), place.name, str(number), name, str(seed)]
    done = _run(*job, "op")
    if done.returncode == 0:
        return "compiled ahead of time"
    if done.returncode == _DIFFERENT:
        raise Fault(f"the op's results change when it is compiled ahead of time: {_last(done)}")
    if _run(*job, "plain").returncode != 0:
        return "AOTInductor left out: on this machine it fails even for torch.relu alone"
    raise Fault(f"AOTInductor fails with the op, but works without it: {_last(done)}")


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", __name__, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=400)


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit status {done.returncode}"


def main() -> None:
    """The main function of the process: runs a case of the op, or torch.relu, in AOTInductor."""
    from opforge import discover

    name, place, number, dtype, seed, what = sys.argv[1:]
    op = discover.find(name)
    s = own(op, Place(place), getattr(torch, dtype), int(seed))[int(number)]
    tensors = s.tensors

    class Model(torch.nn.Module):
        def forward(self, *given: torch.Tensor) -> Any:
            if what == "plain":
                return torch.relu(given[0])
            return op(*{**s.values, **dict(zip(tensors, given, strict=True))}.values())

    model, inputs = Model(), tuple(tensors.values())
    right = as_tuple(model(*inputs))
    with tempfile.TemporaryDirectory() as folder:
        package = torch._inductor.aoti_compile_and_package(
            torch.export.export(model, inputs), package_path=f"{folder}/model.pt2"
        )
        got = as_tuple(torch._inductor.aoti_load_package(package)(*inputs))
    try:
        for a, b in zip(got, right, strict=True):
            compare.check_same_bits(a, b, what)
    except compare.Mismatch as error:
        print(error, file=sys.stderr)
        sys.exit(_DIFFERENT)


if __name__ == "__main__":
    main()
