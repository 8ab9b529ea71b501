# SPDX-License-Identifier: Apache-2.0
"""The row that remarks on results that are right but less accurate than they could be."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from opforge.check.row import NotApplicable, Trial, row
from opforge.check.situation import Situation
from opforge.truth import cases, compare, inputs

_LONG, _SMALL = 1 << 14, 2  # the long dim, and the size of the others
_MOST = 32 * _LONG  # elements of a case; larger ones take seconds
_ENOUGH = 8  # elements that a mean needs, and the most calls to get them
# For 2^14 float32 terms, PyTorch's rms error is 0.7 to 2 ulp. Sums in blocks of 128 or in 128 lanes
# have at most 4 times that error, and a sum that adds one by one has 12 to 40 times.
_TIMES = 8
_ONE_ROUNDING = 12**-0.5  # ulp, the rms error of one rounding; less is luck


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
    "A sum that adds term by term is right, but loses digits that other orders keep. The row "
    "passes with a remark.",
)
def accuracy(t: Trial) -> None:
    """Make each dim long in turn, and compare the op's error with PyTorch's."""
    found: list[_Compared] = []
    # In float64 the truth is PyTorch's own result.
    dtypes = [d for d in t.dtypes if d.is_floating_point and d != torch.float64]
    for dtype in dtypes if t.full else dtypes[:1]:
        for base in t.kinds(dtype):
            for chosen in _sizes(t, base):
                found += _of_one(t, base, chosen)
    if not found:
        raise NotApplicable("it has no result in a dtype narrower than float64")
    worst = max(found, key=lambda c: c.ratio)
    t.note = f"at worst: {worst}"
    if worst.ratio > _TIMES:
        s = t.trying(worst.situation)
        s.both()  # fails if the result is wrong
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
    if t.hurried:  # a long row takes a second
        return chosen[:1]
    return [size for size in chosen if elements[size] <= _MOST] or chosen[:1]


def _of_one(t: Trial, base: Situation, chosen: int) -> list[_Compared]:
    """The errors of all results with one size long; repeated with other values if they are few."""
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
    """The errors of the outputs, and of the gradients if there are any."""
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
