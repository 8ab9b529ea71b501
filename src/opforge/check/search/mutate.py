# SPDX-License-Identifier: Apache-2.0
"""Mutates recipes: another size, layout, dtype, option, value or gradient."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from opforge.check import situation
from opforge.check.place import Place
from opforge.check.search.learned import Learned, Site, sizes_for
from opforge.check.search.recipe import GRADIENTS, LAYOUTS, VALUES, Recipe, name_of
from opforge.check.situation import Situation
from opforge.op import Op, is_float

_SIZES = (
    *(1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 127, 128, 129),
    *(192, 255, 256, 257, 384, 511, 512, 513, 768, 1000, 1023, 1024, 1025, 0),
)
_LARGE = (2047, 2048, 2049, 4096, 4097, 8192, 8200, 16384, 16385, 32768, 65535, 65537, 100003)
_DIMS = (1, 2, 4, 9, 16)
_ALTERNATE = (tuple(range(0, 16, 2)), tuple(range(0, 18, 2)))
_LISTS = ((0,), (-1,), (0, 1), (0, 2), *_ALTERNATE)
_FLOATS = (0.0, 1.0, 0.5, 2.0, -1.0, 0.1, 1e-5)
_INTEGERS = (0, 1, -1, 2, 3)


class Mutator:
    """Makes new recipes of an op from existing ones."""

    def __init__(self, op: Op, place: Place, seed: int, learned: Learned) -> None:
        self.op, self.place, self.seed, self.learned = op, place, seed, learned
        self.random = random.Random(seed)
        self.processors = place.kind.processors
        self.dtypes = [name_of(d) for d in op.dtypes if d.is_floating_point] or [
            name_of(d) for d in op.dtypes
        ]
        self._made: dict[str, list[Situation]] = {}
        self.own = self.cases(self.dtypes[0])
        self.optional = [a.name for a in op.forward.args if a.type == "Tensor?"]
        self.tensors = [a.name for a in op.forward.args if a.is_tensor]
        self.seen_options: dict[str, list[Any]] = {}
        for s in self.own:
            for name, value in s.values.items():
                known = self.seen_options.setdefault(name, [])
                if not isinstance(value, torch.Tensor) and value not in known:
                    known.append(value)

    def cases(self, dtype: str) -> list[Situation]:
        """The record's cases in a dtype (cached)."""
        if dtype not in self._made:
            made = situation.own(self.op, self.place, getattr(torch, dtype), self.seed)
            self._made[dtype] = made
        return self._made[dtype]

    def seeds(self) -> Iterator[Recipe]:
        """The record's cases in every dtype."""
        for dtype in self.dtypes:
            for number in range(len(self.own)):
                yield Recipe(number, dtype)

    def kinds(self) -> list[Recipe]:
        """One case of each kind. Ranks of tensors and which arguments are None make the kind."""
        found: dict[str, Recipe] = {}
        for number, s in enumerate(self.own):
            key = [v.dim() if isinstance(v, torch.Tensor) else v for v in s.values.values()]
            if s.elements and str(key) not in found:
                found[str(key)] = Recipe(number, self.dtypes[0])
        return list(found.values())

    def neighbours(self, recipe: Recipe) -> Iterator[Recipe]:
        """All recipes that differ by one simple change. Kinds of changes take turns."""
        kinds = (self._laid_out, self._asked, self._deeper, self._set, self._sized, self._valued)
        waiting = [kind(recipe) for kind in kinds]
        while waiting:
            for one in list(waiting):
                found = next(one, None)
                if found is None:
                    waiting.remove(one)
                else:
                    yield found

    def _laid_out(self, recipe: Recipe) -> Iterator[Recipe]:
        """Recipes with other strides."""
        s = self.own[recipe.case]
        for name, tensor in s.tensors.items():
            for layout in LAYOUTS[1:]:
                if _fits(layout, tensor):
                    yield replace(recipe, layouts=((name, layout),))
        for layout in ("offset", "stepped", "padded", "transposed"):
            fit = [n for n, t in s.tensors.items() if _fits(layout, t)]
            yield replace(recipe, layouts=tuple((n, layout) for n in fit))

    def _asked(self, recipe: Recipe) -> Iterator[Recipe]:
        """Recipes with other gradients, or with gradients of one argument or output only.

        In the simulator also recipes with another GPU.
        """
        for processors in self.processors:
            yield replace(recipe, processors=processors)
        for gradient in (None, *GRADIENTS[1:]):
            yield replace(recipe, gradient=gradient)
        for position in [i for i, v in enumerate(self.own[recipe.case].case) if is_float(v)]:
            yield replace(recipe, only=position)
        for output in range(len(self.op.outputs) if len(self.op.outputs) > 1 else 0):
            yield replace(recipe, output=output)

    def _deeper(self, recipe: Recipe) -> Iterator[Recipe]:
        """Recipes with more dims. Lists of dims name every other one, so that no dims can merge."""
        s = self.own[recipe.case]
        few = replace(recipe, sizes=tuple((n, 2) for n in s.sizes() if n > 2))
        rank = max(t.dim() for t in s.tensors.values())
        for name in [a.name for a in self.op.forward.args if a.type.startswith("int[")]:
            for alternate in reversed(_ALTERNATE):
                dims = max(alternate[-1] + 1 - rank, 0)
                yield replace(few, dims=dims, options=((name, alternate),))
        for dims in reversed(_DIMS):
            more = replace(few, dims=dims)
            yield more
            yield replace(more, gradient="transposed_gradient")
            yield replace(more, layouts=((next(iter(s.tensors)), "transposed"),))

    def _set(self, recipe: Recipe) -> Iterator[Recipe]:
        """Recipes with other options, or None for optional tensors."""
        s = self.own[recipe.case]
        for name in s.values:
            for value in self.options(name):
                if _differs(value, s.values[name]):
                    yield replace(recipe, options=((name, value),))

    def _sized(self, recipe: Recipe) -> Iterator[Recipe]:
        """Recipes with other sizes."""
        for n in self.own[recipe.case].sizes():
            for size in _SIZES:
                yield self.resized(recipe, n, size)

    def _valued(self, recipe: Recipe) -> Iterator[Recipe]:
        """Recipes with other values, or with one tensor in another dtype."""
        for name, tensor in self.own[recipe.case].floats.items():
            for other in self.dtypes:
                yield replace(recipe, dtypes=((name, other),))
            for function, value in VALUES:
                if tensor.dim() and tensor.numel():
                    yield replace(recipe, values=((name, function, value),))

    def long(self, recipe: Recipe) -> Iterator[Recipe]:
        """Recipes with each size in turn large and the others small, also for small GPUs."""
        for n in self.own[recipe.case].sizes():
            for size in _LARGE:
                long = self.resized(recipe, n, size)
                yield long
                for processors in self.processors:
                    yield replace(long, processors=processors)

    def elements(self, recipe: Recipe) -> int:
        """The number of elements of a recipe's tensors, computed without making them."""
        sizes = dict(recipe.sizes)
        shapes = [t.shape for t in self.own[recipe.case].tensors.values()]
        counts = [math.prod(sizes.get(n, n) for n in shape) for shape in shapes]
        return sum(counts) << recipe.dims

    def options(self, name: str) -> list[Any]:
        """Values to try for an argument that is not a tensor; for an optional one also None."""
        kind = next(a.type for a in self.op.forward.args if a.name == name)
        if name in self.optional:
            return [None]
        if name in self.tensors:
            return []
        found = list(self.seen_options.get(name, ()))
        numbers = [x for x in found if type(x) in (int, float)]
        met = [y for x in numbers for y in self.learned.beside(x)][:40]
        if kind.startswith("bool"):
            found += [False, True]
        elif kind.startswith("float"):
            found += [*_FLOATS, *map(float, met)]
        elif kind.startswith("int") and "[" not in kind:
            found += [*_INTEGERS, *(int(x) + d for x in met for d in (0, 1, -1))]
        elif kind.startswith("int["):
            found += _LISTS
        if kind.endswith("?"):
            found.append(None)
        return list(dict.fromkeys(map(_hashable, found)))

    def learned_sizes(self, site: Site, most: int | None = None) -> Iterator[Recipe]:
        """Recipes with sizes at, just below and just above the constant of a comparison.

        There are at most ``most`` for each size and each pair of operands.
        """
        for pair, recipe in list(site.seen.items()):
            sizes = dict(recipe.sizes)
            for n in self.own[recipe.case].sizes():
                for size in sizes_for(pair, sizes.get(n, n))[:most]:
                    yield self.resized(recipe, n, size)

    def resized(self, recipe: Recipe, size: int, to: int) -> Recipe:
        """A recipe with one of the record's sizes changed. Others are cut if it gets too large."""
        sizes = dict(recipe.sizes)
        sizes[size] = to
        s = self.own[recipe.case]
        if to > 1 << 12:
            for other in s.sizes():
                if other != size:
                    sizes[other] = min(sizes.get(other, other), 3)
        sizes = {k: v for k, v in sizes.items() if k != v}
        return replace(recipe, sizes=tuple(sorted(sizes.items())))

    def any(self, recipe: Recipe) -> Recipe:
        """A recipe with one to three random changes."""
        for _ in range(self.random.choice((1, 1, 2, 3))):
            recipe = self._one(recipe)
        return recipe

    def _one(self, recipe: Recipe) -> Recipe:
        draw = self.random
        s = self.own[recipe.case]
        names = list(s.tensors)
        kind = draw.randrange(14 if self.processors else 13)
        if kind <= 2 and s.sizes():
            n = draw.choice(s.sizes())
            return self.resized(recipe, n, draw.choice((*_SIZES, *_SIZES, *_LARGE)))
        if kind <= 4 and (sites := self.learned.open()):
            found = list(self.learned_sizes(draw.choice(sites)))
            if found:
                near = draw.choice(found)
                return replace(recipe, case=near.case, sizes=near.sizes)
        if kind <= 6 and names:
            name = draw.choice(names)
            layout = draw.choice(LAYOUTS)
            if _fits(layout, s.tensors[name]):
                layouts = {**dict(recipe.layouts), name: layout}
                return replace(recipe, layouts=tuple(layouts.items()))
        if kind == 7:
            name = draw.choice(list(s.values))
            if values := self.options(name):
                options = {**dict(recipe.options), name: draw.choice(values)}
                gone = {n for n, v in options.items() if v is None}
                return replace(
                    recipe,
                    options=tuple(options.items()),
                    layouts=tuple(x for x in recipe.layouts if x[0] not in gone),
                    values=tuple(x for x in recipe.values if x[0] not in gone),
                    dtypes=tuple(x for x in recipe.dtypes if x[0] not in gone),
                )
        if kind == 8:
            gradient = draw.choice((*GRADIENTS, *GRADIENTS, None))
            floats = [i for i, v in enumerate(s.case) if is_float(v)]
            only = draw.choice([None, None, *floats])
            output = draw.choice([None, None, *range(len(self.op.outputs))])
            return replace(recipe, gradient=gradient, only=only, output=output)
        if kind == 9:
            return replace(recipe, dtype=draw.choice(self.dtypes))
        if kind == 10 and len(s.floats) > 1:
            dtypes = {**dict(recipe.dtypes), draw.choice(list(s.floats)): draw.choice(self.dtypes)}
            return replace(recipe, dtypes=tuple(dtypes.items()))
        if kind == 11 and s.floats:
            name = draw.choice(list(s.floats))
            function, value = draw.choice(VALUES)
            return replace(recipe, values=((name, function, value),))
        if kind == 12:
            return replace(recipe, dims=draw.choice((0, *_DIMS)))
        if kind == 13:
            return replace(recipe, processors=draw.choice((None, *self.processors)))
        return recipe


def _fits(layout: str, tensor: torch.Tensor) -> bool:
    if layout == "channels_last":
        return tensor.dim() == 4
    return tensor.numel() > 0 and tensor.dim() >= (2 if layout == "transposed" else 1)


def _differs(a: Any, b: Any) -> bool:
    return isinstance(b, torch.Tensor) or type(a) is not type(b) or a != b


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
