# SPDX-License-Identifier: Apache-2.0
"""Device time of the built-in ops against a copy of the same bytes, eager and torch.compile.

    python benchmarks/measure.py --out benchmarks/results/h200 --commit "$(git describe --always)"

Method: a sleep kernel goes first so that the host is far ahead; CUDA events stand around several
calls over rotating inputs that together exceed the L2; the implementations take turns; the median
over the turns counts. An implementation whose result is wrong is not timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

import opforge

SHAPES = [
    (32768, 1024),
    (16384, 4096),
    (8192, 8192),
    (4096, 16384),
    (2048, 65536),
    (16384, 5120),
    (8192, 11008),
    (4096, 50257),
]
METHOD = "sleep kernel, CUDA events around 10 calls on rotating inputs, median of 9 turns"
CALLS, TURNS = 10, 9
SCALE = 0.75


def sbr(x, bias):
    return torch.relu(x * SCALE + bias)


def device_time(calls: list[Callable[[], object]]) -> float:
    """Microseconds per call of a list of calls made back to back."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(20_000_000)  # some 10 ms: the host queues everything meanwhile
    start.record()
    for call in calls:
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1000 / len(calls)


class Forward:
    """One tensor function on several input sets, its outputs kept apart."""

    def __init__(self, function, sets):
        self.calls = [lambda s=s: function(*s) for s in sets]

    def result(self):
        return self.calls[0]()


class Backward:
    """The gradients of a function, its forward done once per input set."""

    def __init__(self, function, sets, grads):
        self.calls = []
        for inputs, grad in zip(sets, grads, strict=True):
            leaves = [t.detach().requires_grad_() for t in inputs]
            output = function(*leaves)
            self.calls.append(
                lambda o=output, v=leaves, g=grad: torch.autograd.grad(o, v, g, retain_graph=True)
            )

    def result(self):
        return self.calls[0]()


def error(got, right) -> float:
    """The largest relative error of an output or gradient, in norm; NaN counts as infinite."""
    got, right = ([t] if isinstance(t, torch.Tensor) else list(t) for t in (got, right))
    worst = 0.0
    for a, b in zip(got, right, strict=True):
        a, b = a.double(), b.double()
        relative = float((a - b).norm() / b.norm())
        worst = max(worst, relative if torch.isfinite(a).all() else float("inf"))
    return worst


def workloads(rows, cols, dtype):
    """(op, pass, bytes moved, our function, the reference, input sets, gradients or None)."""
    size = torch.tensor([], dtype=dtype).element_size()
    tensor = rows * cols * size
    count = max(2, -(-(220 << 20) // tensor))
    make = lambda *shape: torch.randn(shape, device="cuda", dtype=dtype)  # noqa: E731
    xs = [make(rows, cols) for _ in range(count)]
    ys = [make(rows, cols) for _ in range(count)]
    bias = make(cols)
    one, two = [(x,) for x in xs], list(zip(xs, ys, strict=True))
    biased = [(x, bias) for x in xs]
    ours_sbr = lambda x, b: opforge.scale_bias_relu(x, b, SCALE)  # noqa: E731
    yield "relu", "forward", 2 * tensor, opforge.relu, torch.relu, one, None
    yield "relu", "backward", 3 * tensor, opforge.relu, torch.relu, one, ys
    yield "vector_add", "forward", 3 * tensor, opforge.vector_add, torch.add, two, None
    yield "scale_bias_relu", "forward", 2 * tensor + cols * size, ours_sbr, sbr, biased, None
    yield "scale_bias_relu", "backward", 3 * tensor + cols * size, ours_sbr, sbr, biased, ys
    for dim, label, out in ((1, "last dim", rows), (0, "first dim", cols), (None, "all", 1)):
        ours = lambda x, d=dim: opforge.reduce_sum(x, d)  # noqa: E731
        theirs = lambda x, d=dim: torch.sum(x) if d is None else torch.sum(x, d)  # noqa: E731
        yield "reduce_sum", f"forward, {label}", tensor + out * size, ours, theirs, one, None


def measure(rows, cols, dtype, provenance):
    for op, what, moved, ours, theirs, sets, grads in workloads(rows, cols, dtype):
        torch._dynamo.reset()
        functions = {"opforge": ours, "eager": theirs, "torch.compile": torch.compile(theirs)}
        if grads is None:
            built = {name: Forward(f, sets) for name, f in functions.items()}
        else:
            built = {name: Backward(f, sets, grads) for name, f in functions.items()}
        if grads is None:
            right = theirs(*[t.double() for t in sets[0]])
        else:
            right = Backward(theirs, [[t.double() for t in sets[0]]], [grads[0].double()]).result()
        errors = {name: error(b.result(), right) for name, b in built.items()}
        wrong = [name for name, e in errors.items() if not e <= max(1e-2, 2 * errors["eager"])]
        del right
        source = torch.empty(moved // 2, dtype=torch.uint8, device="cuda").random_()
        copies = [torch.empty_like(source) for _ in range(2)]
        times: dict[str, list[float]] = {"copy": []}
        for _ in range(TURNS + 1):
            times["copy"].append(
                device_time([lambda i=i: copies[i % 2].copy_(source) for i in range(CALLS)])  # noqa: B023
            )
            for name, b in built.items():
                if name not in wrong:
                    calls = [b.calls[i % len(b.calls)] for i in range(CALLS)]
                    times.setdefault(name, []).append(device_time(calls))
        copy = statistics.median(times["copy"][1:])
        for name in functions:
            row = {
                "op": op,
                "pass": what,
                "dtype": str(dtype).removeprefix("torch."),
                "shape": [rows, cols],
                "implementation": name,
                "bytes": moved,
                "copy_us": round(copy, 2),
                "provenance": provenance,
            }
            if name in wrong:
                row["error"] = "wrong result, not timed"
            else:
                turns = times[name][1:]  # the first one warms up
                median = statistics.median(turns)
                row |= {
                    "us": round(median, 2),
                    "us_min": round(min(turns), 2),
                    "us_max": round(max(turns), 2),
                    "gb_per_s": round(moved / median / 1000),
                    "share_of_copy": round(copy / median, 3),
                }
            yield row


def host_times() -> dict[str, float]:
    """Microseconds of host time per call on tiny tensors, all registrations in place."""
    x = torch.randn(8, 64, device="cuda")
    bias = torch.randn(64, device="cuda")
    xg, bg = x.clone().requires_grad_(), bias.clone().requires_grad_()
    cases = {
        "F.layer_norm, no grad": lambda: F.layer_norm(x, (64,), bias, bias),
        "F.layer_norm, grad": lambda: F.layer_norm(xg, (64,), bg, bg),
        "scale_bias_relu, no grad": lambda: opforge.scale_bias_relu(x, bias, SCALE),
        "scale_bias_relu, grad": lambda: opforge.scale_bias_relu(xg, bg, SCALE),
        "relu, no grad": lambda: opforge.relu(x),
        "relu, grad": lambda: opforge.relu(xg),
        "vector_add, no grad": lambda: opforge.vector_add(x, bias),
        "vector_add, grad": lambda: opforge.vector_add(xg, bg),
        "reduce_sum, no grad": lambda: opforge.reduce_sum(x, 1),
        "reduce_sum, grad": lambda: opforge.reduce_sum(xg, 1),
        "eager scale_bias_relu, no grad": lambda: sbr(x, bias),
        "eager scale_bias_relu, grad": lambda: sbr(xg, bg),
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(9):
        for name, call in cases.items():
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(500):
                call()
            times[name].append((time.perf_counter() - started) / 500 * 1e6)
            torch.cuda.synchronize()
    return {name: round(statistics.median(t[1:]), 2) for name, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for <op>.json and host.json"
    )
    parser.add_argument("--commit", required=True, help="what is being measured")
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="only the first N shapes")
    parser.add_argument("--driver", default="unknown")
    args = parser.parse_args()
    provenance = {
        "gpu": torch.cuda.get_device_name(),
        "driver": args.driver,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "opforge": opforge.__version__,
        "commit": args.commit,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "method": METHOD,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    host = host_times()
    (args.out / "host.json").write_text(
        json.dumps({"us": host, "provenance": provenance}, indent=1)
    )
    for name, value in host.items():
        print(f"{value:8.2f} us  {name}")
    rows: dict[str, list[dict]] = {}
    for shape in SHAPES[: args.shapes]:
        for dtype in (torch.bfloat16, torch.float32):
            for row in measure(*shape, dtype, provenance):
                rows.setdefault(row["op"], []).append(row)
                if row["implementation"] == "opforge":
                    key = f"{row['op']:16} {row['pass']:20} {row['dtype']:9} {shape[0]}x{shape[1]}"
                    share = row.get("share_of_copy", row.get("error"))
                    print(f"{key:60} {row.get('us', 0):9.2f} us  {share}")
                    sys.stdout.flush()
            torch.cuda.empty_cache()
    for op, found in rows.items():
        text = ",\n".join(" " + json.dumps(row) for row in found)
        (args.out / f"{op}.json").write_text(f"[\n{text}\n]\n")


if __name__ == "__main__":
    main()
