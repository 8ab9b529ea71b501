# SPDX-License-Identifier: Apache-2.0
"""The row about random numbers: what is dropped, how often, and whether it looks random."""

from __future__ import annotations

import math

import torch

from opforge.check.row import Fault, NotApplicable, Trial, row
from opforge.check.situation import Situation
from opforge.op import as_tuple
from opforge.truth import inputs

_ROWS, _COLUMNS = 256, 512
_SIGMAS = 5  # one in two million
_LAGS = (1, 2, 3, 4, 7, 8, 16, 32, 64, 128, 256)


@row(
    81,
    "randomness",
    "c s g",
    "A dropout mask must not repeat itself along a row, from row to row or from seed to seed.",
)
def randomness(t: Trial) -> None:
    """Check the share that is kept, and the independence along rows, across rows and of seeds."""
    names = [a.name for a in t.op.forward.args]
    if not {"p", "seed"} <= set(names):
        raise NotApplicable("it has no arguments p and seed")
    tried = 0
    for base in t.kinds(t.dtypes[0]):
        if base.values["seed"] is None or not base.values["p"]:
            continue
        s = _clear(t, base)
        if s is None:
            continue
        tried += 1
        for p in (0.1, 0.5, 0.9):
            kept = _kept(t, s, p, 0)
            _demand_rate(kept, p)
            _demand_independent(kept)
            if not torch.equal(kept, _kept(t, s, p, 0)):
                raise Fault(f"p = {p}: the same seed keeps different elements in a second call")
            for step in (1, 2, 1 << 31, 1 << 33):
                _demand_unlike(kept, _kept(t, s, p, step), f"with a seed larger by {step}")
    if not tried:
        raise NotApplicable("no case has an output whose zeros show what was dropped")
    t.note = f"{_ROWS * _COLUMNS} elements"


def _clear(t: Trial, base: Situation) -> Situation | None:
    """``base`` with inputs for which the output is 0 exactly where an element was dropped."""
    first = next(iter(base.floats))
    dims = base.tensors[first].dim()
    if dims < 1:
        return None
    shape = (_ROWS * _COLUMNS,) if dims == 1 else (*[1] * (dims - 2), _ROWS, _COLUMNS)
    old = base.tensors[first].shape
    s = base
    for name, tensor in base.tensors.items():
        if tuple(tensor.shape) == tuple(old):
            s = s.change(name, inputs.resample, shape, seed=t.seed)
        elif tensor.is_floating_point() and tensor.dim():
            s = s.change(name, inputs.resample, (*tensor.shape[:-1], shape[-1]), seed=t.seed)
    for name, tensor in s.floats.items():
        # Not all equal, because a norm would turn them into zeros.
        ramp = torch.arange(tensor.numel(), dtype=torch.float64) % 97 / 97 + 0.5
        made = ramp.view(tensor.shape) if name == first else torch.zeros(tensor.shape)
        s.values[name] = (made + (name in ("weight", "gamma"))).to(tensor)
    if not s.makes_sense():
        return None
    with_all = as_tuple(s.set("p", 0.0).call())[0]
    return s if with_all.shape == shape and bool((with_all != 0).all()) else None


def _kept(t: Trial, s: Situation, p: float, step: int) -> torch.Tensor:
    """Which elements are not 0, as a matrix."""
    seed = s.values["seed"]
    s = s.set("p", p)
    s.values["seed"] = seed + step
    output: torch.Tensor = as_tuple(t.trying(s).call())[0]
    return (output != 0).reshape(_ROWS, _COLUMNS).cpu()


def _demand_rate(kept: torch.Tensor, p: float) -> None:
    share, expected = float(kept.double().mean()), 1 - p
    allowed = _SIGMAS * math.sqrt(p * (1 - p) / kept.numel()) + 2**-16
    if abs(share - expected) > allowed:
        raise Fault(
            f"p = {p} keeps {share:.4f} of {kept.numel()} elements; "
            f"{expected - allowed:.4f} to {expected + allowed:.4f} is expected"
        )
    for what, dim in (("column", 0), ("row", 1)):
        shares = kept.double().mean(dim)
        most = (_SIGMAS + 1) * math.sqrt(p * (1 - p) / kept.shape[dim]) + 2**-16
        worst = int((shares - expected).abs().argmax())
        if abs(float(shares[worst]) - expected) > most:
            raise Fault(f"p = {p} keeps {float(shares[worst]):.3f} of {what} {worst}")


def _demand_independent(kept: torch.Tensor) -> None:
    for lag in _LAGS:
        for what, dim in (("along rows", 1), ("from row to row", 0)):
            if lag < kept.shape[dim]:
                a = kept.narrow(dim, 0, kept.shape[dim] - lag)
                b = kept.narrow(dim, lag, kept.shape[dim] - lag)
                _demand_unlike(a, b, f"{what}, at a distance of {lag}")


def _demand_unlike(a: torch.Tensor, b: torch.Tensor, what: str) -> None:
    """Raise if two masks are correlated."""
    x, y = a.double() - a.double().mean(), b.double() - b.double().mean()
    size = float((x.square().mean() * y.square().mean()).sqrt())
    if size == 0:
        return
    correlation = float((x * y).mean()) / size
    if abs(correlation) > _SIGMAS / math.sqrt(a.numel()):
        raise Fault(
            f"the kept elements are correlated ({what}): a correlation of {correlation:.3f} in "
            f"{a.numel()} elements"
        )
