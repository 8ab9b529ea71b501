# SPDX-License-Identifier: Apache-2.0
"""Compares results with the float64 truth, element by element, within the allowed error.

A result may be wrong by half an ulp of its dtype (the rounding of the output), plus eight times the
spread that roundings cause in the formula at that element (rounding.py). In 16 bits, if the
reference itself rounds intermediate results to 16 bits, six times the spread of these roundings may
take the place of the latter. Neither the errors of other elements nor PyTorch's error matter.

There are two exceptions. If PyTorch's result in the same dtype is beyond the limit itself, an
element within an ulp of PyTorch's is right: the formula magnifies roundings more than a few samples
show. If PyTorch overflows and the truth does not, or the other way round, both are right.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from opforge.truth import pattern

# Elements per chunk. A chunk fits into caches, while a result may take half of the memory.
_CHUNK = {"cpu": 1 << 17, "cuda": 1 << 26}
_HALF = 0.5 * (1 + 2**-20)  # of an ulp, and a little for the truth's own rounding
# Factors of the spread, and of the spread of the reference's own 16-bit roundings (narrow). They
# are so large that none of a million elements exceeds the limit by chance.
_RULES = ((8, False), (6, True))
# Numbers of runs for a spread. A spread of few runs may be too small by chance, so elements beyond
# the limit get more runs.
_SAMPLES = (2, 8, 64)
_USUAL = 1 << 16  # elements that are enough to estimate the typical spread in a tensor


class Spread(Protocol):
    """Returns how far roundings move each element from the truth (root mean square)."""

    def __call__(self, samples: int, narrow: bool) -> torch.Tensor | None:
        """The spread over ``samples`` runs. ``narrow`` asks for 16-bit roundings; None if none."""


# Other results that PyTorch gives for the elements at these (flat) positions.
Alone = Callable[[torch.Tensor], Iterable[torch.Tensor]]


class Mismatch(AssertionError):
    """A result is further from the truth than allowed."""


@dataclass
class Error:
    """The distance of results from the truth in ulps: largest and root mean square."""

    largest: float = 0.0
    squares: float = 0.0
    count: int = 0

    def add(self, ulps: torch.Tensor) -> None:
        """Add the errors of some elements."""
        if ulps.numel():
            self.largest = max(self.largest, float(ulps.max()))
            self.squares += float(ulps.square().sum())
            self.count += ulps.numel()

    def merge(self, other: Error) -> None:
        """Add the errors of another summary."""
        self.largest = max(self.largest, other.largest)
        self.squares += other.squares
        self.count += other.count

    @property
    def rms(self) -> float:
        """The root mean square."""
        return float((self.squares / self.count) ** 0.5) if self.count else 0.0


@dataclass
class Errors:
    """The errors of the op and of PyTorch."""

    ours: Error
    torchs: Error

    def merge(self, other: Errors) -> None:
        """Add the errors of another pair."""
        self.ours.merge(other.ours)
        self.torchs.merge(other.torchs)


def in_ulps(error: float) -> str:
    """An error as text: 0.29, 4.1, 430, 1,140."""
    return f"{error:.2g}" if error < 99.5 else f"{error:,.0f}"


def _demand(condition: bool, text: str) -> None:
    if not condition:
        raise Mismatch(text)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bits as integers, so that 0.0 and -0.0 differ."""
    if not tensor.is_floating_point():
        return tensor
    sizes = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(sizes[tensor.element_size()])


def ulp(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The spacing of ``dtype`` around each of ``values`` (which are float64)."""
    info = torch.finfo(dtype)
    size = values.abs().clamp(min=info.tiny)
    mantissa, exponent = torch.frexp(size)  # size = mantissa * 2^exponent, mantissa in [0.5, 1)
    return torch.ldexp(torch.full_like(mantissa, info.eps / 2), exponent)


def check(
    got: torch.Tensor,
    torchs: torch.Tensor,
    truth: torch.Tensor,
    spread: Spread,
    what: str = "output",
    any_order: bool = False,
    alone: Alone | None = None,
) -> Errors:
    """Compare ``got`` with ``truth``. ``torchs`` is PyTorch's result in the same dtype.

    ``spread`` is only called if an element is wrong by more than one rounding. With ``any_order``,
    terms may be added in any order, so infinite terms may give Inf or NaN. ``alone`` returns other
    results of PyTorch for single elements, because its loops treat NaN in different ways.
    """
    _demand(got.shape == truth.shape, f"{what}: shape {tuple(got.shape)}, not {tuple(truth.shape)}")
    _demand(got.dtype == torchs.dtype, f"{what}: dtype {got.dtype}, not {torchs.dtype}")
    got, torchs, truth = (parts(t.detach().to(truth.device)) for t in (got, torchs, truth))
    if not got.is_floating_point():
        _demand_nowhere(got != torchs, f"{what}: values differ from PyTorch's", got, torchs)
        return Errors(Error(), Error())
    errors = Errors(Error(), Error())
    wrong_chunks: list[torch.Tensor] = []
    odd_chunks: list[torch.Tensor] = []
    for ours, theirs, right in _chunks(got, torchs, truth):
        odd_wrong, finite = _odd(ours, theirs, right, any_order)
        odd_chunks.append(odd_wrong)
        error, torchs_error = (ours.double() - right).abs(), (theirs.double() - right).abs()
        spacing = ulp(right, got.dtype)
        wrong_chunks.append(finite & ~(error <= spacing * _HALF))
        errors.ours.add((error / spacing)[finite])
        errors.torchs.add((torchs_error / spacing)[finite & torch.isfinite(theirs)])
    _demand_no_odd(odd_chunks, got, torchs, what, alone)
    wrong = _joined(wrong_chunks, got)
    if bool(wrong.any()):
        _demand_within(wrong, got, torchs, truth.double(), spread, what)
    return errors


def measured(got: torch.Tensor, torchs: torch.Tensor, truth: torch.Tensor) -> Errors:
    """The errors of both results in ulps, without checking them.

    If an element is smaller than typical elements of the tensor, the ulps are those of typical
    elements. Its own ulps mean nothing for a sum that cancels.
    """
    _demand(got.shape == truth.shape, f"shape {tuple(got.shape)}, not {tuple(truth.shape)}")
    dtype = torchs.dtype
    got, torchs, right = (parts(t.detach().to(truth.device)).double() for t in (got, torchs, truth))
    finite = torch.isfinite(got + torchs + right)
    if not bool(finite.all()):
        got, torchs, right = got[finite], torchs[finite], right[finite]
    found = Errors(Error(), Error())
    if right.numel() and dtype.is_floating_point:
        usual = right.square().mean().sqrt()
        spacing = ulp(right.abs().clamp(min=usual), dtype)
        found.ours.add((got - right).abs() / spacing)
        found.torchs.add((torchs - right).abs() / spacing)
    return found


def _demand_within(
    wrong: torch.Tensor,
    got: torch.Tensor,
    torchs: torch.Tensor,
    truth: torch.Tensor,
    spread: Spread,
    what: str,
) -> None:
    """Elements that are wrong by more than one rounding must be within the spread of roundings."""
    found = wrong.reshape(-1).nonzero().squeeze(-1)
    ours, right = got.reshape(-1)[found].double(), truth.reshape(-1)[found]
    error = (ours - right).abs()
    rounding = ulp(right, got.dtype) * _HALF
    allowed, bad = rounding, wrong.new_ones(found.shape)
    for samples, (times, narrow) in itertools.product(_SAMPLES, _RULES):
        width = spread(samples, narrow)
        if width is None:
            continue
        width = width.to(truth.device)
        width = width if narrow else _steady(width, truth)
        off = rounding + times * width.reshape(-1)[found]
        allowed = torch.maximum(allowed, off) if narrow else off
        bad = ~(error <= allowed)
        if narrow:  # equal numbers are rounded equally, so PyTorch's result is right as well
            theirs = torchs.reshape(-1)[found].double()
            low, high = torch.minimum(right, theirs), torch.maximum(right, theirs)
            bad &= ~((ours >= low - rounding) & (ours <= high + rounding))
        if not bool(bad.any()):
            return
    theirs = torchs.reshape(-1)[found]
    bad &= ~(_near(got.reshape(-1)[found], theirs) & ((theirs.double() - right).abs() > allowed))
    if not bool(bad.any()):
        return
    most = int((error / allowed).masked_fill(~bad, -1).argmax())
    still = torch.zeros_like(wrong).view(-1)
    still[found[bad]] = True
    still = still.view(wrong.shape)
    worst = tuple(int(i) for i in torch.unravel_index(found[most], wrong.shape))
    raise Mismatch(
        f"{what}: error {float(error[most]):.3g} where {float(allowed[most]):.3g} is "
        f"allowed, at {worst}: got {float(got[worst]):.8g}, truth {float(truth[worst]):.8g}, "
        f"PyTorch has {float(torchs[worst]):.8g}; {_extent(still)}"
    )


def _steady(width: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """A spread of at least the typical one in its tensor, because few samples can be too small."""
    step = max(width.numel() // _USUAL, 1)
    some, right = width.reshape(-1)[::step], truth.reshape(-1)[::step]
    usual = (some / right.abs())[torch.isfinite(some) & torch.isfinite(right) & (right != 0)]
    if not usual.numel():
        return width
    least = usual.kthvalue(max(usual.numel() // 4, 1)).values
    return torch.maximum(width, truth.abs().nan_to_num(0, 0, 0) * least)


def parts(tensor: torch.Tensor) -> torch.Tensor:
    """A complex tensor as a real one with the two parts in the last dim. Others are unchanged."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def compute_dtype(outputs: Iterable[torch.Tensor]) -> torch.dtype:
    """The dtype that kernels compute in: float64 if all outputs are float64, or else float32.

    The inputs do not matter: float64 must stay exact even with a float32 table or mask.
    """
    dtypes = [o.dtype for o in outputs if o.is_floating_point() or o.is_complex()]
    wide = bool(dtypes) and all(d in (torch.float64, torch.complex128) for d in dtypes)
    return torch.float64 if wide else torch.float32


def _chunks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Chunks of the result, of PyTorch's and of the truth, in float64."""
    flat = [t.reshape(-1) for t in tensors]
    size = _CHUNK[flat[0].device.type]
    for start in range(0, flat[0].numel(), size):
        got, torchs, truth = (t[start : start + size] for t in flat)
        yield got, torchs, truth.double()


def _joined(chunks: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    if not chunks:
        return torch.zeros(like.shape, dtype=torch.bool, device=like.device)
    return torch.cat(chunks).view(like.shape)


def _odd(
    got: torch.Tensor, torchs: torch.Tensor, truth: torch.Tensor, any_order: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where NaN or Inf are wrong, and where all values are finite, so that errors make sense."""
    rounded = truth.to(got.dtype)
    finite = torch.isfinite(got) & torch.isfinite(rounded)

    def like(other: torch.Tensor) -> torch.Tensor:
        same = (got == other) | (got.isnan() & other.isnan())
        if any_order:
            same |= ~torch.isfinite(got) & ~torch.isfinite(other)
        return same | (torch.isfinite(got) & torch.isfinite(other))

    return ~finite & ~like(torchs) & ~like(rounded), finite


def _demand_no_odd(
    chunks: list[torch.Tensor],
    got: torch.Tensor,
    torchs: torch.Tensor,
    what: str,
    alone: Alone | None,
) -> None:
    if any(bool(c.any()) for c in chunks):
        wrong = _joined(chunks, got)
        if alone is not None:
            found = wrong.reshape(-1).nonzero().squeeze(-1)
            ours = got.reshape(-1)[found]
            for other in alone(found):
                wrong.view(-1)[found[same_bits(ours, other.to(ours.dtype))]] = False
        finite = bool(torch.isfinite(torchs[wrong]).all())
        text = "NaN or Inf where PyTorch has none" if finite else "NaN or Inf differ from PyTorch's"
        _demand_nowhere(wrong, f"{what}: {text}", got, torchs)


def _demand_nowhere(
    wrong: torch.Tensor, text: str, got: torch.Tensor, torchs: torch.Tensor
) -> None:
    if bool(wrong.any()):
        first = tuple(wrong.nonzero()[0].tolist())
        raise Mismatch(
            f"{text}, at {first}: got {got[first].item()}, PyTorch has {torchs[first].item()}; "
            f"{_extent(wrong)}"
        )


def _extent(wrong: torch.Tensor) -> str:
    return f"{int(wrong.sum())} of {wrong.numel()} elements are wrong, {pattern.describe(wrong)}"


def same_bits(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Where two results have the same bits. Any two NaN count as the same."""
    same = bits(first) == bits(second)
    if first.is_floating_point():
        same |= first.isnan() & second.isnan()
    return same


def within_an_ulp(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two results differ by at most the last bit."""
    if not first.is_floating_point() or first.dtype != second.dtype:
        return False
    first, second = first.detach(), second.detach()
    return bool((_near(first, second) | same_bits(first, second)).all())


def _near(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Where two results of one dtype differ by at most the last bit."""
    a, b = first.double(), second.double()
    return (a - b).abs() <= ulp(torch.maximum(a.abs(), b.abs()), first.dtype)


def check_same_bits(first: torch.Tensor, second: torch.Tensor, what: str) -> None:
    """Raise Mismatch unless two results have the same bits."""
    _demand(first.shape == second.shape, f"{what}: {tuple(first.shape)}, {tuple(second.shape)}")
    _demand(first.dtype == second.dtype, f"{what}: {first.dtype} and {second.dtype}")
    wrong = ~same_bits(first.detach(), second.detach())
    if bool(wrong.any()):
        where = tuple(wrong.nonzero()[0].tolist())
        raise Mismatch(
            f"{what}: first at {where}: {first[where].item()!r} and {second[where].item()!r}; "
            f"{int(wrong.sum())} of {wrong.numel()} elements differ, {pattern.describe(wrong)}"
        )
