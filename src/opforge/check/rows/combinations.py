# SPDX-License-Identifier: Apache-2.0
"""Rows about combinations: pairs of options, layouts, dtypes and gradients; and ranks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

from opforge.check.row import NotApplicable, Trial, row
from opforge.check.situation import Situation
from opforge.op import is_float
from opforge.truth import inputs

_LAYOUTS = (
    inputs.contiguous,
    inputs.offset,
    inputs.stepped,
    inputs.padded,
    inputs.transposed,
    inputs.expanded,
)
_GRADIENTS = (
    inputs.random_gradient,
    inputs.narrow_gradient,
    inputs.expanded_gradient,
    inputs.transposed_gradient,
)
_LEADING = (2, 3, 2, 3, 2, 3)  # sizes of added dims: none of them is 1
_TRIES = 30  # random choices; the one with the most new pairs is taken

Choice = dict[str, Any]


@row(
    80,
    "pairs",
    "c s g",
    "Some faults need two choices at once, for example a strided weight and a frozen bias. Each "
    "alone is right.",
)
def pairs(t: Trial) -> None:
    """Test every pair of choices: None, gradients wanted, parameter dtypes, layouts, gradients."""
    count = 0
    for base in t.kinds():
        most = 200 if t.full else 8
        for choice in covering(_factors(t, base), most, t.seed):
            s = _made(base, choice)
            if s is None or not s.makes_sense():
                continue
            count += 1
            t.trying(s).forward()
            wanted = [
                i
                for i, (name, value) in enumerate(s.values.items())
                if is_float(value) and choice[f"{name} wants a gradient"]
            ]
            if wanted and s.has_gradient(wanted):
                s.backward(choice["gradient"], tuple(wanted))
    if not count:
        raise NotApplicable("no two choices of this op fit together")
    t.note = f"{count} situations"


def _factors(t: Trial, base: Situation) -> dict[str, tuple[Any, ...]]:
    """What can be chosen for a case, by name."""
    factors: dict[str, tuple[Any, ...]] = {"gradient": _GRADIENTS}
    optional = {a.name for a in t.op.forward.args if a.type == "Tensor?"}
    for i, (name, tensor) in enumerate(base.tensors.items()):
        if tensor.dim():
            factors[f"layout of {name}"] = _LAYOUTS
        if name in optional:
            factors[f"{name} is there"] = (True, False)
        if tensor.is_floating_point():
            factors[f"{name} wants a gradient"] = (True, False)
            others = [d for d in t.op.allowed(name) if d.is_floating_point and d != tensor.dtype]
            if i:  # the first one has the dtype of the case
                factors[f"dtype of {name}"] = (tensor.dtype, *others[: None if t.full else 1])
    for argument in t.op.forward.args:
        if argument.type == "bool":
            factors[argument.name] = (False, True)
    return factors


def _made(base: Situation, choice: Choice) -> Situation | None:
    """``base`` with these choices."""
    s = base
    for name, tensor in base.tensors.items():
        if not choice.get(f"{name} is there", True):
            s = s.set(name, None)
            continue
        dtype = choice.get(f"dtype of {name}", tensor.dtype)
        if dtype != tensor.dtype:
            s = s.change(name, inputs.to_dtype, dtype)
        layout: Callable[..., Any] = choice.get(f"layout of {name}", inputs.contiguous)
        if tensor.numel() and layout is not inputs.contiguous:
            s = s.change(name, layout)
    for argument in base.op.forward.args:
        if argument.type == "bool" and s.values[argument.name] != choice[argument.name]:
            s = s.set(argument.name, choice[argument.name])
    return s


def covering(factors: dict[str, tuple[Any, ...]], most: int, seed: int) -> list[Choice]:
    """At most ``most`` choices that contain every pair of two factors' values, if that suffices."""
    draw = random.Random(seed)
    names = list(factors)
    left = {
        (a, i, b, j)
        for a, b in itertools.combinations(names, 2)
        for i in range(len(factors[a]))
        for j in range(len(factors[b]))
    }
    chosen: list[Choice] = []
    while left and len(chosen) < most:
        missing = sorted(left)
        best: tuple[int, dict[str, int], set[Any]] = (-1, {}, set())
        for _ in range(_TRIES):
            one = {n: draw.randrange(len(factors[n])) for n in names}
            a, i, b, j = draw.choice(missing)  # start with a missing pair
            one |= {a: i, b: j}
            met = {(a, one[a], b, one[b]) for a, b in itertools.combinations(names, 2)} & left
            if len(met) > best[0]:
                best = (len(met), one, met)
        left -= best[2]
        chosen.append({n: factors[n][i] for n, i in best[1].items()})
    return chosen


@row(
    80,
    "ranks",
    "c s g",
    "An op must work for tensors with no dims or with six as well as for those with two.",
)
def ranks(t: Trial) -> None:
    """Remove the leading dim of each case, or replace it by several; none has size 1."""
    tried = 0
    for base in t.kinds(t.dtypes[0]):
        most = max(base.tensors.values(), key=lambda x: x.dim())
        if not most.dim():
            continue
        for rank in range(7):
            leading = _LEADING[: max(rank - most.dim() + 1, 0)]
            if rank != most.dim() and (s := _led(base, most.shape[0], leading, most.dim())):
                tried += 1
                t.trying(s).both()
    if not tried:
        raise NotApplicable("it takes tensors of one rank only")


def _led(base: Situation, first: int, leading: tuple[int, ...], dims: int) -> Situation | None:
    """``base`` with other leading sizes for the tensors whose leading size is ``first``."""
    s = base
    for name, tensor in base.tensors.items():
        if tensor.dim() == dims and tensor.shape[0] == first:
            shape = (*leading, *tensor.shape[1:])
            s = s.change(name, inputs.resample, shape, seed=base.seed)
    return s if s is not base and s.makes_sense() else None
