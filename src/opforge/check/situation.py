# SPDX-License-Identifier: Apache-2.0
"""A situation: the arguments of one call, how they were made, and the checks of its results.

Every change of the arguments is recorded as a line of code. A failure can therefore be shown as a
script that repeats the same call.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection
from typing import Any, ClassVar

import torch

from opforge.check.place import Place
from opforge.discover import where
from opforge.op import Make, Op, as_tuple
from opforge.registration.arguments import check_arguments
from opforge.truth import cases, compare, inputs

_MOST = 1 << 26  # the most elements of a tensor made on the CPU
_LARGE = 1 << 19  # a case with more elements takes seconds to compare


class TooLarge(ValueError):
    """A resized case would not fit into memory."""


class Situation:
    """The arguments of one call, by name."""

    # Called with every situation right before it runs, because after a crash it is too late.
    before_run: ClassVar[Callable[[Situation], None] | None] = None

    def __init__(
        self, op: Op, place: Place, number: int, dtype: torch.dtype, seed: int, case: cases.Case
    ) -> None:
        self.op, self.place, self.dtype, self.seed = op, place, dtype, seed
        self.number = number  # the number of the record's case that this one started from
        self.values: dict[str, Any] = {
            a.name: v for a, v in zip(op.forward.args, case, strict=True)
        }
        self.errors: dict[str, list[compare.Errors]] = {"forward": [], "backward": []}
        names = ", ".join(self.values) + ("," if len(self.values) == 1 else "")
        self.lines = [
            f"make = Make({dtype}, {place.device!r}, seed={seed})",
            f"{names} = list(op.iter_cases(make))[{number}]",
        ]
        self.last = ""  # the line that runs the check, or "" if it takes more than one line
        self.quick = False  # compare large tensors roughly

    @property
    def case(self) -> cases.Case:
        """The arguments in order."""
        return tuple(self.values.values())

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensor arguments."""
        return {n: v for n, v in self.values.items() if isinstance(v, torch.Tensor)}

    @property
    def floats(self) -> dict[str, torch.Tensor]:
        """The floating point tensors."""
        return {n: v for n, v in self.tensors.items() if v.is_floating_point()}

    @property
    def elements(self) -> int:
        """Elements of all tensors together."""
        return sum(t.numel() for t in self.tensors.values())

    @property
    def _is_rough(self) -> bool:
        return self.quick and self.elements > _LARGE

    def copy(self) -> Situation:
        """A copy that can be changed independently."""
        twin = Situation.__new__(Situation)
        twin.__dict__.update(self.__dict__)
        twin.values, twin.lines = dict(self.values), list(self.lines)
        return twin

    def change(
        self, name: str, function: Callable[..., Any], *args: Any, **named: Any
    ) -> Situation:
        """A situation with one argument changed by a function of :mod:`opforge.truth.inputs`."""
        twin = self.copy()
        twin.values[name] = function(twin.values[name], *args, **named)
        given = [name, *map(_literal, args), *(f"{k}={_literal(v)}" for k, v in named.items())]
        twin.lines.append(f"{name} = change.{function.__name__}({', '.join(given)})")
        return twin

    def set(self, name: str, value: Any) -> Situation:
        """A situation with one argument replaced by a value that is not a tensor."""
        twin = self.copy()
        twin.values[name] = value
        twin.lines.append(f"{name} = {_literal(value)}")
        return twin

    def resize(self, sizes: dict[int, int]) -> Situation:
        """A situation with other sizes. In all tensors, dims of an old size get the new one."""
        twin = self
        for name, tensor in self.tensors.items():
            shape = tuple(sizes.get(n, n) for n in tensor.shape)
            if torch.Size(shape).numel() > _MOST:  # equal dims grow together
                raise TooLarge(f"{name} would have the shape {shape}")
            if shape != tuple(tensor.shape):
                twin = twin.change(name, inputs.resample, shape, seed=self.seed)
        return twin

    def sizes(self) -> list[int]:
        """The distinct sizes of dims, without 1, which may mean broadcasting."""
        found = [n for t in self.tensors.values() for n in t.shape if n != 1]
        return list(dict.fromkeys(found))

    def makes_sense(self) -> bool:
        """Whether the record accepts these arguments. A changed case may be invalid for the op."""
        assert self.op.reference is not None
        case = self.case
        if any(not t.is_floating_point() for t in self.tensors.values()):
            # On a GPU, a label out of range fails later and breaks the whole process.
            case = tuple(v.cpu() if isinstance(v, torch.Tensor) else v for v in case)
        try:
            check_arguments(self.op, self.case)
            with cases.one_thread():
                self.op.reference(*case)
        except torch.OutOfMemoryError:
            raise
        except Exception:
            return False
        return True

    # --- checks ---

    def _announce(self) -> None:
        if Situation.before_run is not None:
            Situation.before_run(self)

    def call(self) -> Any:
        """Run the op."""
        self.last = "print(op(*case))"
        self._announce()
        with self.place():
            return self.op(*self.case)

    def forward(self) -> tuple[torch.Tensor, ...]:
        """Run the forward and check the outputs against the truth. Returns the outputs."""
        self.last = "checks.check_forward(op, case, place)"
        self._announce()
        with torch.no_grad():
            return cases.check_forward(
                self.op, self.case, self.place, self.errors["forward"], rough=self._is_rough
            )

    def backward(
        self,
        gradient: Callable[..., torch.Tensor] = inputs.random_gradient,
        only: int | Collection[int] | None = None,
        output: int | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Run the backward and check the gradients against the truth. Returns the gradients.

        ``only`` is the position of the one argument that requires a gradient, or the positions of
        several. ``output`` is the index, among differentiable outputs, of the only one whose
        gradient is defined.
        """
        leaves = "checks.as_leaves(case)" if only is None else f"checks.as_leaves(case, {only})"
        self.last = (
            f"checks.check_backward(op, {leaves}, "
            f"lambda o: change.{gradient.__name__}(o, seed={self.seed}), place)"
        )
        if output is not None:
            self.last = ""
        self._announce()
        turns = itertools.count()

        def grads_for(o: torch.Tensor) -> torch.Tensor | None:
            return gradient(o, seed=self.seed) if output in (None, next(turns)) else None

        return cases.check_backward(
            self.op,
            cases.as_leaves(self.case, only),
            grads_for,
            self.place,
            self.errors["backward"],
            rough=self._is_rough,
        )

    def both(self) -> None:
        """Check the forward, and the backward if there is one."""
        self.forward()
        if self.has_gradient():
            self.backward()

    def has_gradient(self, only: int | Collection[int] | None = None) -> bool:
        """Whether the reference is differentiable in an input, or in one of ``only``."""
        assert self.op.reference is not None
        if not self.floats:
            return False
        with cases.one_thread():
            outputs = as_tuple(self.op.reference(*cases.as_leaves(self.case, only)))
        return any(o.requires_grad for o in outputs)

    def results(self, gradient: bool = True) -> list[torch.Tensor]:
        """Outputs and gradients, for a comparison of bits with another run."""
        self.last = ""
        self._announce()
        case = cases.as_leaves(self.case) if gradient else self.case
        with self.place():
            outputs = list(as_tuple(self.op(*case)))
            wanted = [o for o in outputs if o.requires_grad]
            if wanted:
                grads = [inputs.random_gradient(o, self.seed) for o in wanted]
                torch.autograd.backward(wanted, grads)
        found = [t.grad for t in cases.differentiable(case)]
        return [o.detach() for o in outputs] + [g for g in found if g is not None]

    def describe(self) -> str:
        """The arguments in one line: ``x float32 (5, 33) strides (66, 2), scale 0.5``."""
        parts = []
        for name, value in self.values.items():
            if not isinstance(value, torch.Tensor):
                parts.append(f"{name} {value}")
                continue
            text = f"{name} {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
            if not value.is_contiguous():
                text += f" strides {value.stride()}"
            if value.storage_offset():
                text += f" offset {value.storage_offset()}"
            parts.append(text)
        if self.place.processors != Place.processors:
            parts.append(f"multiprocessors {self.place.processors}")
        return ", ".join(parts)

    def script(self) -> str:
        """A complete program that repeats this call."""
        names = ", ".join(self.values) + ("," if len(self.values) == 1 else "")
        lines = [
            "import torch",
            "",
            "from opforge import Make, discover",
            "from opforge.truth import cases as checks",
            "from opforge.truth import inputs as change",
            "from opforge.check.place import Place",
            "",
            f"op = discover.find({where(self.op)!r})",
            f"place = {_short(self.place)}",
            *self.lines,
            f"# {self.describe()}",
            f"case = ({names})",
            self.last,
        ]
        return "\n".join(lines)


def _literal(value: Any) -> str:
    """A value as source code. For infinities and NaN, repr() is not valid code."""
    odd = isinstance(value, float) and not math.isfinite(value)
    return f'float("{value}")' if odd else repr(value)


def _short(place: Place) -> str:
    """A place as source code, without its defaults."""
    plain = Place(place.name)
    given = [f"{k}={v!r}" for k, v in vars(place).items() if v != getattr(plain, k)]
    return f"Place({', '.join([repr(place.name), *given])})"


def own(op: Op, place: Place, dtype: torch.dtype, seed: int) -> list[Situation]:
    """The record's cases, unchanged."""
    made = op.iter_cases(Make(dtype, place.device, seed))
    return [Situation(op, place, i, dtype, seed, case) for i, case in enumerate(made)]
