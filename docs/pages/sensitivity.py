# SPDX-License-Identifier: Apache-2.0
"""docs/sensitivity.md: the smallest errors that `opforge check` detects."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from typing import Any

import torch

from opforge import discover
from opforge.check import situation
from opforge.check.place import Place

from .data import ROOT
from .text import GENERATED, prose, table

RESULTS = ROOT / "tests" / "sensitivity" / "results.json"
# Bits of a dtype. For an error of half an ulp, k is at most one more.
BITS = {"float32": 24, "float16": 11, "bfloat16": 8, "float64": 53}
LEAST = 10  # results that are listed


def page() -> str:
    """A line for each op and pass, and the results where only large errors are detected."""
    data = json.loads(RESULTS.read_text(encoding="utf-8"))
    found = data["found"]
    heads = ("op", "", *BITS)
    return (
        "# The smallest detected error\n\n"
        + GENERATED
        + prose(
            "`tests/sensitivity/run.py` takes correct results of the built-in ops on the CPU, "
            "multiplies one element of typical size by 1 + 2⁻ᵏ, and passes them to the comparison "
            "that [`opforge check`](check.md) uses. The table shows the largest k that is "
            "detected: the median over the results and cases of the record and, in brackets, the "
            f"minimum. The last bit of a dtype is k = {_last_bits()}. The loss of `cross_entropy` "
            "is float32 for 16-bit logits, and the gradient of a float32 weight is float32 in "
            "every column. "
            f"{_provenance(data['runs'])}"
        )
        + table(heads, _lines(found), first=2)
        + "\n"
        + prose(
            "If no intermediate result is rounded (relu), an error in the last bit is detected.",
            "The allowed error of eight times the spread of one rounding costs three bits. A",
            "formula of several steps costs one or two more. A sum of n terms, in any order, costs",
            "half the bits of n, and more if terms cancel.",
            "In 16 bits, a reference that rounds intermediate results allows kernels to do the",
            "same.",
            _parts(found),
        )
        + "## Where only large errors are detected\n\n"
        + prose(
            f"The {LEAST} float32 results with the smallest k. They are sums of many terms, or "
            "differences of nearly equal values."
        )
        + table(("result", "case", "k"), _least(found), first=2)
    )


def _last_bits() -> str:
    return ", ".join(f"{bits} in {dtype}" for dtype, bits in BITS.items())


def _provenance(runs: dict[str, dict[str, str]]) -> str:
    facts = {
        key: sorted({run[key] for run in runs.values()}) for key in ("torch", "commit", "time")
    }
    days = sorted({t[:10] for t in facts["time"]})
    said = [", ".join(facts["torch"]), ", ".join(facts["commit"]), ", ".join(days)]
    return f"torch {said[0]}, commit {said[1]}, {said[2]}."


def _ks(found: list[dict[str, Any]], part: str = "element") -> list[int]:
    return [k for f in found for k in f[part] if k is not None]


def _lines(found: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for op in dict.fromkeys(f["op"] for f in found):
        for direction in ("forward", "backward"):
            cells = []
            for dtype in BITS:
                ks = _ks(
                    [
                        f
                        for f in found
                        if (f["op"], f["dtype"]) == (op, dtype)
                        and f["result"].startswith("grad_") == (direction == "backward")
                    ]
                )
                cells.append(f"{statistics.median_low(ks)} ({min(ks)})" if ks else "–")
            if set(cells) != {"–"}:
                yield op, direction, *cells


def _parts(found: list[dict[str, Any]]) -> str:
    """How much smaller an error is detected if more elements have it."""
    gains = []
    for part in ("row", "binade"):
        more = [
            b - a
            for f in found
            for a, b in zip(f["element"], f[part], strict=True)
            if a is not None
        ]
        gains.append(f"{statistics.mean(more):.1f}")
    return (
        f"An error in a whole row is detected at a k that is {gains[0]} larger; an error in all "
        f"elements with the same exponent, at a k that is {gains[1]} larger (means over all "
        "results)."
    )


def _least(found: list[dict[str, Any]]) -> Iterator[tuple[str, str, int]]:
    every = [
        (k, f["op"], f["result"], number)
        for f in found
        if f["dtype"] == "float32"
        for number, k in enumerate(f["element"])
        if k is not None
    ]
    lowest: dict[tuple[str, str], tuple[int, int]] = {}
    for k, op, result, number in sorted(every):
        lowest.setdefault((op, result), (k, number))
    for (op, result), (k, number) in list(lowest.items())[:LEAST]:
        own = situation.own(discover.find(op), Place("cpu"), torch.float32, seed=0)
        shapes = ", ".join(f"{n} {tuple(t.shape)}" for n, t in own[number].tensors.items())
        yield f"{result} of {op}", shapes, k
