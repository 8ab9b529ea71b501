# SPDX-License-Identifier: Apache-2.0
"""A recipe: a short JSON description that makes a found case again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from opforge.check import situation
from opforge.check.place import Place
from opforge.check.situation import Situation
from opforge.errors import RecordError
from opforge.op import Op, as_tuple
from opforge.truth import cases, inputs

LAYOUTS = (
    "contiguous",
    "offset",
    "stepped",
    "padded",
    "transposed",
    "expanded",
    "expanded_last",
    "windows",
    "channels_last",
)
GRADIENTS = (
    "random_gradient",
    "narrow_gradient",
    "expanded_gradient",
    "transposed_gradient",
    "repeated_gradient",
    "column_gradient",
    "offset_gradient",
)
VALUES: tuple[tuple[str, float], ...] = (
    ("put", float("nan")),
    ("put", float("inf")),
    ("put", -float("inf")),
    ("put", 0.0),
    ("fill_row", -float("inf")),
    ("fill_row", 0.0),
    ("scaled", 1e4),
    ("scaled", 1e-4),
    ("scaled", 1e37),
    ("shifted", 1e3),
)


_HUGE = 1e30


@dataclass(frozen=True)
class Recipe:
    """How to make a case from one of the record's.

    ``sizes`` maps sizes of the record to new ones. ``dims`` is the number of dims that are added
    in front of the tensors with the most dims. ``options`` replaces arguments that are not tensors,
    or sets tensors to None. ``values``, ``layouts`` and ``gradient`` name functions of
    :mod:`opforge.truth.inputs`; ``gradient`` is None if no tensor requires one. ``only`` is the
    position of the only argument that requires a gradient, and ``output`` of the only output that
    gets one. ``processors`` is the number of multiprocessors of the simulated GPU, if it is not the
    default. For a small GPU, few rows are many.
    """

    case: int
    dtype: str
    sizes: tuple[tuple[int, int], ...] = ()
    dims: int = 0
    options: tuple[tuple[str, Any], ...] = ()
    dtypes: tuple[tuple[str, str], ...] = ()
    values: tuple[tuple[str, str, float], ...] = ()
    layouts: tuple[tuple[str, str], ...] = ()
    gradient: str | None = "random_gradient"
    only: int | None = None
    output: int | None = None
    processors: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The recipe as data for JSON, without its defaults."""
        plain = Recipe(self.case, self.dtype)
        own = {k: v for k, v in vars(self).items() if v != getattr(plain, k)}
        if self.values:  # JSON has no infinities
            own["values"] = [(name, what, str(value)) for name, what, value in self.values]
        return {"case": self.case, "dtype": self.dtype, **own}

    def situation(self, op: Op, place: Place, seed: int) -> Situation:
        """Make the case. Raises RecordError if the record has changed and it cannot be made."""
        made = situation.own(op, place, _dtype(self.dtype), seed)
        if self.case >= len(made):
            raise RecordError(f"the record of {op.name} no longer has case {self.case}")
        return self.apply(made[self.case])

    def apply(self, s: Situation) -> Situation:
        """Apply the changes to the record's case that the recipe starts from."""
        if self.processors is not None and s.place.simulated:
            s = s.copy()
            s.place = replace(s.place, processors=self.processors)
        if self.sizes:
            s = s.resize(dict(self.sizes))
        most = max(t.dim() for t in s.tensors.values())
        for name in [n for n, t in s.tensors.items() if self.dims and t.dim() == most]:
            s = s.change(name, inputs.more_dims, self.dims)
        for name, value in self.options:
            s = s.set(name, value)
        for name, dtype in self.dtypes:
            s = s.change(name, inputs.to_dtype, _dtype(dtype))
        for name, function, value in self.values:
            s = s.change(name, getattr(inputs, function), value)
        for name, layout in self.layouts:
            s = s.change(name, getattr(inputs, layout))
        return s


def from_json(data: dict[str, Any]) -> Recipe:
    """The recipe that :meth:`Recipe.as_json` wrote, with JSON's lists converted to tuples."""
    pairs = ("sizes", "options", "dtypes", "values", "layouts")
    given: dict[str, Any] = {k: tuple(map(tuple, v)) if k in pairs else v for k, v in data.items()}
    given["options"] = tuple(
        (name, tuple(value) if isinstance(value, list) else value)
        for name, value in given.get("options", ())
    )
    given["values"] = tuple((name, what, float(v)) for name, what, v in given.get("values", ()))
    return Recipe(**given)


def _dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found


def name_of(dtype: torch.dtype) -> str:
    """The name of a dtype in recipes, such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def exercise(s: Situation, recipe: Recipe) -> None:
    """Run the op, and its backward as the recipe says, without comparing results."""
    if recipe.gradient is None:
        with torch.no_grad():
            s.call()
        return
    case = cases.to_overwrite(s.op, cases.as_leaves(s.case, recipe.only))
    with s.place():
        outputs = [o for o in as_tuple(s.op(*case)) if o.requires_grad]
        if recipe.output is not None:
            outputs = outputs[recipe.output : recipe.output + 1]
        if outputs:
            make = getattr(inputs, recipe.gradient)
            torch.autograd.backward(outputs, [make(o.detach(), s.seed) for o in outputs])


def compare(s: Situation, recipe: Recipe) -> None:
    """Check outputs and gradients against the truth, with two exceptions.

    With values that are infinite or nearly so, gradients are not compared, because sums of them
    depend on the order. With mixed dtypes, gradients have the error of the narrower dtype, so it is
    enough that they run.
    """
    s.forward()
    if any(not abs(value) < _HUGE for _, _, value in recipe.values):
        return
    if recipe.dtypes:
        exercise(s, recipe)
    elif recipe.gradient is not None and s.has_gradient(recipe.only):
        s.backward(getattr(inputs, recipe.gradient), recipe.only, recipe.output)
