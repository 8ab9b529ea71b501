# SPDX-License-Identifier: Apache-2.0
"""The row about results that are right and could be more exact: it tells, and does not refuse."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from opforge.check.row import NotApplicable, Trial, row
from opforge.check.situation import Situation
from opforge.truth import cases, compare, inputs

_LONG, _SMALL = 1 << 14, 2  # a dim, and what others are cut to
_MOST = 32 * _LONG  # elements of a case: more take seconds
_ENOUGH = 8  # elements of a result that a mean is taken of, and calls for them at most
# Of 2^14 float32 terms PyTorch errs by 0.7 to 2 ulp (rms), sums in blocks of 128 or in 128 lanes by
# at most 4 times as much, a sum one by one by 12 to 40 times as much.
_TIMES = 8
_ONE_ROUNDING = 12**-0.5  # ulp, the rms of what is rounded once: an error below is luck


@dataclass
class _Compared:
    """The errors of one result in one situation."""

    name: str
    situation: Situation
    ours: float
    torchs: float

    @property
    def ratio(self) -> float:
        return self.ours / max(self.torchs, _ONE_ROUNDING)

    def __str__(self) -> str:
        ours, torchs = compare.in_ulps(self.ours), compare.in_ulps(self.torchs)
        return f"rms error of {self.name} {ours} ulp where PyTorch has {torchs}"


@row(
    0,
    "accuracy",
    "c s g",
    "A sum term by term is right, and loses digits that other orders keep: that is told.",
)
def accuracy(t: Trial) -> None:
    """One dim long, each in turn: how far the op is from the truth, and how far PyTorch is."""
    found: list[_Compared] = []
    # In float64 the truth is PyTorch's own result.
    dtypes = [d for d in t.dtypes if d.is_floating_point and d != torch.float64]
    for dtype in dtypes if t.full else dtypes[:1]:
        for base in t.kinds(dtype):
            for chosen in _sizes(t, base):
                found += _of_one(t, base, chosen)
    if not found:
        raise NotApplicable("no result in less than float64")
    worst = max(found, key=lambda c: c.ratio)
    t.note = f"at worst: {worst}"
    if worst.ratio > _TIMES:
        s = t.trying(worst.situation)
        s.both()  # whether it is right at all
        shapes = ", ".join(f"{n} {tuple(x.shape)}" for n, x in s.tensors.items())
        better = "add in blocks, or in several accumulators"
        if t.op.pointwise:
            better = "another formula or function is better"
        t.note = f"right, but needlessly inaccurate: {worst} ({shapes}); {better}"


def _sizes(t: Trial, base: Situation) -> list[int]:
    """The sizes to make long: all that leave the case small, or the one that leaves it smallest."""
    made = {chosen: t.resized(base, chosen, _LONG, _SMALL) for chosen in base.sizes()}
    elements = {chosen: s.elements for chosen, s in made.items() if s is not None}
    chosen = sorted(elements, key=lambda size: elements[size])
    if t.place.name == "sim" and not t.full:  # where a long row takes a second
        return chosen[:1]
    return [size for size in chosen if elements[size] <= _MOST] or chosen[:1]


def _of_one(t: Trial, base: Situation, chosen: int) -> list[_Compared]:
    """All results of a case with one size long; with other values again where results are few."""
    errors: dict[str, compare.Errors] = {}
    last = base
    for turn in range(_ENOUGH):
        again = base.copy()
        again.seed = t.seed + turn
        s = t.resized(again, chosen, _LONG, _SMALL)
        if s is None:
            break
        last = s
        for name, one in _errors(s).items():
            errors.setdefault(name, compare.Errors(compare.Error(), compare.Error())).merge(one)
        if all(e.ours.count >= _ENOUGH for e in errors.values()):
            break
    return [
        _Compared(name, last, e.ours.rms, e.torchs.rms)
        for name, e in errors.items()
        if e.ours.count
    ]


def _errors(s: Situation) -> dict[str, compare.Errors]:
    """Of outputs, and of gradients where there are any."""
    with torch.no_grad():
        outputs, truth = cases.outputs_and_truth(s.op, s.case, s.place)
    with cases.one_thread():
        found = truth.errors(outputs)
    if s.has_gradient():
        gradients, truth = cases.gradients_and_truth(
            s.op, cases.as_leaves(s.case), lambda o: inputs.random_gradient(o, s.seed), s.place
        )
        with cases.one_thread():
            found |= truth.errors(gradients)
    return found
