# SPDX-License-Identifier: Apache-2.0
"""Times rms_norm, softmax and a plain copy with Triton's do_bench: does opforge bench agree?

    python benchmarks/agree.py --out agree.json

The script does not use opforge's own timing; it shares only the op folders in do_bench/ops.
do_bench empties the L2 before every call and does not hide the host's time, so an implementation
with slow launches looks slower here. "once" is a third way, which shows where a difference comes
from. As in opforge, the host's time is hidden and reads flush the L2; as in do_bench, each call
runs alone between two events.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config
from triton.testing import do_bench

from opforge.bench.machine import provenance
from opforge.discover import find
from opforge.op import Op

OPS = Path(__file__).parent / "do_bench" / "ops"
SHAPES = [(16384, 4096), (8192, 8192), (16384, 5120)]
COPIES = [64, 128, 256, 512]  # MiB in each of the two tensors
DTYPE = torch.bfloat16
ERROR = 2e-2  # of the norm; bfloat16 roundings are about 2e-3, and a wrong kernel is far worse


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=DTYPE)


def microseconds(call: Callable[[], Any]) -> float:
    return 1000 * do_bench(call, warmup=25, rep=100, return_mode="median")


def once(call: Callable[[], Any]) -> float:
    """Microseconds of a single call after a sleep that hides the host's time; the median of 20."""
    flush = torch.ones(32 << 20, device="cuda")
    times = []
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(4_000_000)
        flush.sum()
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(1000 * start.elapsed_time(end))
    return statistics.median(times)


def implementations(op: Op) -> Iterator[tuple[str, Callable[[], Callable[..., Any]]]]:
    """Names, and how to get the function, which may fail."""
    yield "eager", lambda: op.reference
    yield "torch.compile", lambda: torch.compile(op.reference, dynamic=False)
    yield from op.peers.items()


def forward(function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any]:
    return lambda: (function(*args),)


def backward(function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any]:
    """The gradients of every tensor argument; the graph is kept and used again."""
    leaves = [a.detach().requires_grad_() if isinstance(a, torch.Tensor) else a for a in args]
    wanted = [a for a in leaves if isinstance(a, torch.Tensor)]
    y = function(*leaves)
    torch.manual_seed(1)  # the same incoming gradient for every implementation
    grad_y = draw(*y.shape)
    return lambda: torch.autograd.grad(y, wanted, grad_y, retain_graph=True)


def check(found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        off = ((ours.float() - theirs.float()).norm() / theirs.float().norm()).item()
        if not off < ERROR:
            raise ValueError(f"the result is off by {off:.1e} of the norm")


def measure_op(op: Op, rows: list[dict[str, Any]]) -> None:
    for shape in SHAPES:
        torch.manual_seed(0)
        args = op.sized(draw, *shape)
        for what, prepare in (("forward", forward), ("backward", backward)):
            expected = prepare(op.reference, args)()
            for name, get in implementations(op):
                torch._dynamo.reset()  # every shape is compiled separately
                try:
                    call = prepare(get(), args)
                    check(call(), expected)
                    times = microseconds(call), once(call)
                    record(rows, op.name, what, shape, name, *times)
                except Exception as error:  # a peer may fail in any way; the others continue
                    reason = str(error).strip().splitlines() or [""]
                    title = f"{op.name} {what} {shape[0]}x{shape[1]} {name}"
                    print(f"{title}: {type(error).__name__}: {reason[0]}", flush=True)
            del expected


def measure_copy(rows: list[dict[str, Any]]) -> None:
    for mib in COPIES:
        source = draw((mib << 20) // DTYPE.itemsize)
        target = torch.empty_like(source)
        call = functools.partial(target.copy_, source)
        times = microseconds(call), once(call)
        record(rows, "copy", "forward", tuple(source.shape), "copy", *times)


def record(
    rows: list[dict[str, Any]],
    op: str,
    what: str,
    shape: tuple[int, ...],
    name: str,
    us: float,
    once_us: float,
) -> None:
    dtype = str(DTYPE).removeprefix("torch.")
    keys = ("op", "pass", "dtype", "shape", "implementation", "us", "once_us")
    rows.append(dict(zip(keys, (op, what, dtype, list(shape), name, us, once_us), strict=True)))
    size = "x".join(map(str, shape))
    print(f"{op:<9} {what:<8} {size:>11} {name:<13} {us:8.1f} us, once {once_us:8.1f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--ops", nargs="*", default=["rms_norm", "softmax"], help="op folders")
    parser.add_argument("--commit", help="the measured commit, if git cannot tell")
    options = parser.parse_args()
    # torch.compile's donated buffers do not work with a graph that is kept.
    torch._functorch.config.donated_buffer = False
    rows: list[dict[str, Any]] = []
    measure_copy(rows)
    for name in options.ops:
        measure_op(find(str(OPS / name)), rows)
    run = provenance("cuda", "triton.testing.do_bench, median; once: see agree.py", options.commit)
    lines = ",\n".join(f" {json.dumps(row)}" for row in rows)
    options.out.write_text(f'{{"run": {json.dumps(run)},\n"rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
