# SPDX-License-Identifier: Apache-2.0
"""``Truth``, which results are compared with: the reference in float64, and PyTorch's result."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from opforge.op import Op, as_tuple, is_float
from opforge.truth import compare
from opforge.truth.narrow_rounding import NarrowRounding
from opforge.truth.rounding import RandomRounding
from opforge.truth.sums import short_cumsum

Case = tuple[Any, ...]
Pick = Callable[[torch.Tensor], torch.Tensor]
Results = Sequence[torch.Tensor | None]
_WIDEST = 64  # a multiple of the elements that any vectorised loop processes at a time
_SMALL = 1 << 18  # elements of all tensors of a case
_ROUGH = 2**-13  # relative to an element and to typical elements of its tensor


def differentiable(case: Case) -> list[torch.Tensor]:
    """The floating point tensors of a case."""
    return [a for a in case if is_float(a)]


def cast(case: Case, dtype: torch.dtype | None = None) -> Case:
    """A case with its floating point tensors as new leaves, optionally in another dtype.

    For float64, complex tensors become complex128.
    """

    def one(value: Any) -> Any:
        if is_float(value):
            return value.detach().to(dtype or value.dtype).requires_grad_(value.requires_grad)
        wide = dtype == torch.float64 and isinstance(value, torch.Tensor) and value.is_complex()
        return value.to(torch.complex128) if wide else value

    return tuple(map(one, case))


class ShortSums(TorchFunctionMode):
    """A mode in which torch.cumsum adds in blocks, for a smaller error; see ``short_cumsum``."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if function in (torch.cumsum, torch.Tensor.cumsum) and not kwargs:
            return short_cumsum(*args)
        return function(*args, **(kwargs or {}))


def nearby(case: Case) -> Case:
    """Move a case of small tensors to the CPU, because a GPU is slower for many small steps."""
    if sum(v.numel() for v in case if isinstance(v, torch.Tensor)) > _SMALL:
        return case
    return tuple(
        v.detach().cpu().requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) else v
        for v in case
    )


def compact(case: Case) -> Case:
    """Copy tensors whose elements are far apart."""
    return tuple(
        v.detach().contiguous().requires_grad_(v.requires_grad)
        if isinstance(v, torch.Tensor)
        else v
        for v in case
    )


class _Spreads:
    """The root mean square of the differences that roundings cause, summed over samples.

    It uses hypot, because squares near the ends of float64 overflow or underflow, and an infinite
    spread would allow any error.
    """

    def __init__(self) -> None:
        self.samples = 0
        self._roots: dict[int, torch.Tensor] = {}

    def add(self, moved: Results, still: Results) -> None:
        """Add the differences of one sample."""
        for i, (value, right) in enumerate(zip(moved, still, strict=True)):
            if value is None or right is None:
                continue
            value, right = compare.parts(value.detach()), compare.parts(right.detach())
            if not right.is_floating_point():
                continue
            right = right.to(value.device)
            off = (value.double() - right.double()).masked_fill_(~torch.isfinite(right), 0)
            off = off.abs_().nan_to_num_(nan=math.inf, posinf=math.inf)
            self._roots[i] = self._roots[i].hypot_(off) if i in self._roots else off

    def of(self, i: int) -> torch.Tensor:
        """The root mean square for result ``i``."""
        return self._roots[i] / math.sqrt(self.samples)


class Truth:
    """The expected results: PyTorch's in the same dtype, and the reference's in float64.

    ``saved`` computes the results by the backward's own formula in float64, from saved values that
    are moved by random roundings of a seed (None: by none). A backward that starts from rounded
    outputs of the forward has such an error. ``picked`` computes the results of a pointwise op for
    some elements alone. ``also`` is another formula for the results; roundings in it are allowed
    as well.
    """

    def __init__(
        self,
        op: Op,
        case: Case,
        names: list[str],
        results: Callable[[Case], Results],
        saved: Callable[[int | None], Results] | None = None,
        picked: Callable[[Pick], Results] | None = None,
        also: Callable[[Case], Results] | None = None,
    ) -> None:
        self._op, self._case, self._names = op, case, names
        self._results, self._saved, self._picked = results, saved, picked
        try:
            self._torchs = results(cast(case))
        except RuntimeError:  # a library that refuses strides beyond 2^31, for example
            self._torchs = results(cast(compact(case)))
        with ShortSums():
            self._exact = results(cast(case, torch.float64))
        self._also = also
        self._from_saved: Results = []
        self._wide, self._narrow = _Spreads(), _Spreads()

    @property
    def elements(self) -> int:
        """The number of elements that it holds: those of its results, in several forms."""
        held = [t for t in self._exact if t is not None]
        return 1 + 4 * sum(t.numel() for t in held)

    def check(
        self, got: Results, errors: list[compare.Errors] | None = None, rough: bool = False
    ) -> None:
        """Raise unless all results are within the allowed error, or a larger one if ``rough``."""
        self._demand_all(got)
        for i, (what, one) in enumerate(zip(self._names, got, strict=True)):
            if not isinstance(one, torch.Tensor | None):
                raise compare.Mismatch(f"{what}: a {type(one).__name__}, not a tensor")
            theirs, right = self._torchs[i], self._exact[i]
            if one is None or theirs is None or right is None:
                _check_absent(one, theirs, what)
                continue
            # A result that is not even roughly right may be a sum of which only roundings are left.
            spreads = [self._rough_spread, self._spread] if rough else [self._spread]
            any_order = self._op.rowwise and what.startswith("grad_")
            alone = functools.partial(self._otherwise, i)
            for spread in spreads:
                try:
                    found = compare.check(
                        one, theirs, right, functools.partial(spread, i), what, any_order, alone
                    )
                    break
                except compare.Mismatch:
                    if spread is spreads[-1]:
                        raise
            if errors is not None:
                errors.append(found)

    def errors(self, got: Results) -> dict[str, compare.Errors]:
        """The errors of results and of PyTorch, by name, without checking them."""
        self._demand_all(got)
        all_three = zip(got, self._torchs, self._exact, strict=True)
        return {
            what: compare.measured(one, theirs, right)
            for what, (one, theirs, right) in zip(self._names, all_three, strict=True)
            if one is not None and theirs is not None and right is not None
        }

    def _demand_all(self, got: Results) -> None:
        if len(got) != len(self._names):
            raise compare.Mismatch(f"{self._op.name}: {len(got)} results, not {len(self._names)}")

    def _spread(self, i: int, samples: int, narrow: bool) -> torch.Tensor | None:
        """The root mean square of what roundings do to result ``i``."""
        dtypes = [t.dtype for t in differentiable(self._case)]
        if narrow and not {torch.float16, torch.bfloat16} & set(dtypes):
            return None
        spreads, near = self._narrow if narrow else self._wide, nearby(self._case)
        while spreads.samples < samples:
            spreads.samples += 1
            seed = spreads.samples
            result = self._torchs[i]
            assert result is not None
            for formula, exact in self._formulas:
                if narrow:
                    with NarrowRounding(seed) as rounding:
                        moved = formula(cast(near))
                    spreads.add([rounding.unrounded(m) for m in moved], exact)
                else:
                    with RandomRounding(self._compute, seed, result.dtype):
                        moved = formula(cast(near, torch.float64))
                    spreads.add(moved, exact)
            if self._saved is not None and not narrow:
                self._from_saved = self._from_saved or self._saved(None)
                spreads.add(self._saved(seed), self._from_saved)
        return spreads.of(i)

    @functools.cached_property
    def _formulas(self) -> list[tuple[Callable[[Case], Results], Results]]:
        """The formulas whose roundings are allowed, each with its exact results."""
        found = [(self._results, self._exact)]
        if self._also is not None:
            with ShortSums():
                found.append((self._also, self._also(cast(self._case, torch.float64))))
        return found

    @functools.cached_property
    def _compute(self) -> torch.dtype:
        """The dtype that kernels compute in."""
        assert self._op.reference is not None
        with torch.no_grad():
            outputs = as_tuple(self._op.reference(*cast(nearby(self._case))))
        return compare.compute_dtype(outputs)

    def _rough_spread(self, i: int, samples: int, narrow: bool) -> torch.Tensor | None:
        """A generous estimate of the spread, for tensors that take too long to sample.

        Values that are read or written at a wrong place, left out or added twice exceed it by far.
        """
        exact, result = self._exact[i], self._torchs[i]
        assert exact is not None
        assert result is not None
        if narrow:
            return None
        size = compare.parts(exact.detach()).double().abs()
        usual = size.nan_to_num(0, 0, 0).square().mean().sqrt()
        return (size + usual) * max(_ROUGH, torch.finfo(result.dtype).eps)

    def _otherwise(self, i: int, found: torch.Tensor) -> Iterator[torch.Tensor]:
        """Other valid values of result ``i`` at elements whose NaN or Inf differ from PyTorch's."""
        if self._picked is not None:
            yield from self._alone(i, found)
        if self._saved is None:
            return
        # For an infinite gradient, one form of a formula gives Inf and another one Inf - Inf. The
        # backward's own formula is as valid as autograd's, except for finite values.
        self._from_saved = self._from_saved or self._saved(None)
        own, theirs = self._from_saved[i], self._torchs[i]
        if own is not None and theirs is not None and not theirs.is_complex():
            own, theirs = (t.detach().reshape(-1).to(found.device)[found] for t in (own, theirs))
            yield torch.where(torch.isfinite(theirs) | torch.isfinite(own), theirs, own.to(theirs))

    def _alone(self, i: int, found: torch.Tensor) -> Iterator[torch.Tensor]:
        """Result ``i`` for single elements, computed by vectorised loops and by scalar loops."""
        assert self._picked is not None
        (wide,) = self._picked(lambda t: t.reshape(-1)[found].repeat_interleave(_WIDEST))[i : i + 1]
        if wide is not None:
            yield wide[::_WIDEST]
        if len(found) <= _WIDEST:
            narrow = [self._picked(lambda t, f=f: t.reshape(-1)[f : f + 1])[i] for f in found]  # type: ignore[misc]
            yield torch.cat([n for n in narrow if n is not None])

    def roughly(self, got: Sequence[torch.Tensor | None]) -> bool:
        """Whether results are right but for rounding: in norm at most four times PyTorch's error.

        One rounding of the dtype is added, because PyTorch computes some ops exactly.
        """
        if len(got) != len(self._names):
            return False
        for one, theirs, right in zip(got, self._torchs, self._exact, strict=True):
            if not isinstance(one, torch.Tensor | None):
                return False
            if one is None or theirs is None or right is None:
                if any(t is not None and bool(t.any()) for t in (one, theirs)):
                    return False  # only one of the two exists
                continue
            if one.shape != theirs.shape or not one.is_floating_point():
                return False
            size = float(right.double().norm())
            ours, torchs = (float((t.double() - right).norm()) for t in (one, theirs))
            if not ours <= 4 * torchs + 2 * torch.finfo(theirs.dtype).eps * size:
                return False
        return True


def _check_absent(got: torch.Tensor | None, torchs: torch.Tensor | None, what: str) -> None:
    """Raise unless both gradients are absent. A missing gradient equals one of zeros."""
    given = got if torchs is None else torchs
    if given is not None and bool(given.any()):
        who, other = ("the op", "its reference") if torchs is None else ("the reference", "the op")
        raise compare.Mismatch(f"{what}: {who} has one, {other} has none")
