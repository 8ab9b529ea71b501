# SPDX-License-Identifier: Apache-2.0
"""Right results with a small error put in, and whether the comparison of `opforge check` notices.

A part of one result is scaled by 1 + 2^-k: one element of typical size, the row it is in, or its
binade, which is all elements with its exponent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from opforge.check import situation
from opforge.check.place import Place
from opforge.check.situation import Situation
from opforge.op import Op, is_float
from opforge.truth import cases, compare, inputs

MOST = 55  # beyond the last bit of float64
PARTS = ("element", "row", "binade")


@dataclass
class Found:
    """A result of an op: by part, the largest k noticed in each of the record's cases.

    None where there is nothing to scale: no such result, or one of zeros.
    """

    op: str
    dtype: str
    result: str  # y, or grad_x
    element: list[int | None]
    row: list[int | None]
    binade: list[int | None]


def typical(right: torch.Tensor) -> int | None:
    """The (flat) position of the element of median size, zeros aside."""
    sizes = right.detach().abs().reshape(-1).double()
    able = (torch.isfinite(sizes) & (sizes > 0)).nonzero().squeeze(-1)
    if not able.numel():
        return None
    return int(able[sizes[able].median(0).indices])


def part_of(right: torch.Tensor, at: int, part: str) -> torch.Tensor:
    """Which elements of a result to scale: the one at this position, its row, or its binade."""
    flat = right.detach().reshape(-1).double()
    places = torch.arange(flat.numel())
    if part == "element":
        chosen = places == at
    elif part == "row":
        width = right.shape[-1] if right.dim() else 1
        chosen = places // width == at // width
    else:
        exponents = torch.frexp(flat).exponent
        chosen = (exponents == exponents[at]) & (flat != 0)
    return chosen.view(right.shape)


def scaled(right: torch.Tensor, chosen: torch.Tensor, k: int) -> torch.Tensor:
    """The result with some elements multiplied by 1 + 2^-k, and rounded to its dtype."""
    wide = right.detach().double()
    return torch.where(chosen, wide + wide * 2.0**-k, wide).to(right.dtype)


def is_noticed(truth: cases.Truth, results: cases.Results, i: int, wrong: torch.Tensor) -> bool:
    """Whether the comparison refuses the results with ``wrong`` in the place of number ``i``."""
    given = [wrong if i == j else r for j, r in enumerate(results)]
    try:
        truth.check(given)
    except compare.Mismatch:
        return True
    return False


def smallest_noticed(
    truth: cases.Truth, results: cases.Results, i: int, chosen: torch.Tensor
) -> int:
    """The largest k for which an error of 2^-k is noticed, by bisection; 0 if none is."""
    right = results[i]
    assert right is not None
    noticed, passed = 0, MOST + 1
    while passed - noticed > 1:
        k = (noticed + passed) // 2
        if is_noticed(truth, results, i, scaled(right, chosen, k)):
            noticed = k
        else:
            passed = k
    return noticed


def results_of(s: Situation) -> Iterator[tuple[cases.Truth, cases.Results, list[str]]]:
    """Forward and backward: the truth, the op's results, which are right, and their names."""
    with torch.no_grad():
        outputs, truth = cases.outputs_and_truth(s.op, s.case)
    truth.check(outputs)
    yield truth, outputs, [a.name for a in s.op.outputs]
    if s.has_gradient():
        gradients, truth = cases.gradients_and_truth(
            s.op, cases.as_leaves(s.case), lambda o: inputs.random_gradient(o, s.seed)
        )
        truth.check(gradients)
        yield truth, gradients, [f"grad_{name}" for name in s.floats]


def sweep(op: Op, dtype: torch.dtype) -> list[Found]:
    """Every floating point result, in every case of the record."""
    found: dict[str, Found] = {}
    situations = situation.own(op, Place("cpu"), dtype, seed=0)
    for number, s in enumerate(situations):
        for truth, results, names in results_of(s):
            for i, name in enumerate(names):
                right = results[i]
                at = None if right is None or not is_float(right) else typical(right)
                if right is None or at is None:
                    continue
                nothing = [[None] * len(situations) for _ in PARTS]
                kind = str(dtype).removeprefix("torch.")
                one = found.setdefault(name, Found(op.name, kind, name, *nothing))
                for part in PARTS:
                    k = smallest_noticed(truth, results, i, part_of(right, at, part))
                    getattr(one, part)[number] = k
    return list(found.values())
