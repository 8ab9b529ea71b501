# SPDX-License-Identifier: Apache-2.0
"""Error relative to truth: the float64 reference.

A kernel may err by the largest of: k times what PyTorch itself errs in the same dtype (k = 2
forward, 3 backward), one ulp of the output, and for sums of n terms 2 sqrt(n) eps of the
accumulation type times the size of the sum: its own, that of such terms with random signs (sqrt(n)
times their rms: what partial sums are like), or the largest term. In float64
only the last two apply, the last for any n and doubled: the truth errs, too, and x * y + z is a
sum. There is no other tolerance.

Two things are no error. Where PyTorch overflows in the dtype and the truth does not (or the other
way round), either is right. And within rounding of a kink (relu at 0) the value of either side is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from opforge.check import pattern

# Elements looked at together: what caches hold; and a result may fill half of the memory.
_CHUNK = {"cpu": 1 << 17, "cuda": 1 << 26}

# Truths at inputs moved by so many roundings, several ways: sides(roundings).
Sides = Callable[[float], list[torch.Tensor]]
Allowance = Callable[[torch.Tensor], torch.Tensor]


class Mismatch(AssertionError):
    """A result is further from the truth than it may be."""


@dataclass
class Error:
    """How far results are from the truth, in ulps: largest and root of the mean square."""

    largest: float = 0.0
    squares: float = 0.0
    count: int = 0

    def add(self, ulps: torch.Tensor) -> None:
        """Take the errors of some elements in."""
        if ulps.numel():
            self.largest = max(self.largest, float(ulps.max()))
            self.squares += float(ulps.square().sum())
            self.count += ulps.numel()

    def merge(self, other: Error) -> None:
        """Take in what another one has seen."""
        self.largest = max(self.largest, other.largest)
        self.squares += other.squares
        self.count += other.count

    @property
    def rms(self) -> float:
        """The root of the mean square."""
        return float((self.squares / self.count) ** 0.5) if self.count else 0.0


@dataclass
class Errors:
    """Ours beside PyTorch's."""

    ours: Error
    torchs: Error


def _demand(condition: bool, text: str) -> None:
    if not condition:
        raise Mismatch(text)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same bits as integers: 0.0 and -0.0 are not equal there."""
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
    k: int,
    summed: int = 0,
    scale: float = 1.0,
    what: str = "output",
    sides: Sides | None = None,
    any_order: bool = False,
) -> Errors:
    """Compare ``got`` with ``truth``; ``torchs`` is PyTorch's own result in the same dtype.

    ``summed`` is how many terms each element adds up, ``scale`` how large they are. ``sides`` is
    asked for the values on both sides of a kink where elements seem to be wrong. With
    ``any_order`` of terms, infinite ones may come to Inf or to NaN, whatever PyTorch makes of them.
    """
    _demand(got.shape == truth.shape, f"{what}: shape {tuple(got.shape)}, not {tuple(truth.shape)}")
    _demand(got.dtype == torchs.dtype, f"{what}: dtype {got.dtype}, not {torchs.dtype}")
    got, torchs, truth = (t.detach().to(truth.device) for t in (got, torchs, truth))
    if not got.is_floating_point():
        _demand_nowhere(got != torchs, f"{what}: values differ from PyTorch's", got, torchs)
        return Errors(Error(), Error())
    allowance = _allowance(torchs, truth, k, summed, scale)
    errors = Errors(Error(), Error())
    wrong_chunks: list[torch.Tensor] = []
    odd_chunks: list[torch.Tensor] = []
    for ours, theirs, right in _chunks(got, torchs, truth):
        odd_wrong, finite = _odd(ours, theirs, right, any_order)
        odd_chunks.append(odd_wrong)
        error, torchs_error = (ours.double() - right).abs(), (theirs.double() - right).abs()
        spacing = ulp(right, got.dtype)
        wrong_chunks.append(finite & ~(error <= allowance(right)))
        errors.ours.add((error / spacing)[finite])
        errors.torchs.add((torchs_error / spacing)[finite & torch.isfinite(theirs)])
    _demand_no_odd(odd_chunks, got, torchs, what)
    wrong = _joined(wrong_chunks, got)
    if bool(wrong.any()) and sides is not None:
        wrong &= ~_at_a_kink(got, truth, sides, allowance)
    if bool(wrong.any()):
        where = wrong.nonzero()
        ours, right = got[wrong].double(), truth[wrong].double()
        error, allowed = (ours - right).abs(), allowance(right)
        most = int((error - allowed).argmax())
        worst = tuple(where[most].tolist())
        raise Mismatch(
            f"{what}: error {float(error[most]):.3g} where {float(allowed[most]):.3g} is "
            f"allowed, at {worst}: got {float(got[worst]):.8g}, truth {float(truth[worst]):.8g}, "
            f"PyTorch has {float(torchs[worst]):.8g}; {_extent(wrong)}"
        )
    return errors


def _chunks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Got, PyTorch's and the truth (in float64), so many elements at a time."""
    flat = [t.reshape(-1) for t in tensors]
    size = _CHUNK[flat[0].device.type]
    for start in range(0, flat[0].numel(), size):
        got, torchs, truth = (t[start : start + size] for t in flat)
        yield got, torchs, truth.double()


def _joined(chunks: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    if not chunks:
        return torch.zeros(like.shape, dtype=torch.bool, device=like.device)
    return torch.cat(chunks).view(like.shape)


def _allowance(
    torchs: torch.Tensor, truth: torch.Tensor, k: int, summed: int, scale: float
) -> Allowance:
    """What each element may err, given its true value."""
    dtype, double = torchs.dtype, torchs.dtype == torch.float64
    least = relative = 0.0
    if not double:
        for _, theirs, right in _chunks(torchs, torchs, truth):
            finite = torch.isfinite(theirs) & torch.isfinite(right)
            if bool(finite.any()):
                least = max(least, k * float((theirs.double() - right)[finite].abs().max()))
    if double:
        relative = 2 * max(summed, 1) ** 0.5 * torch.finfo(torch.float64).eps
    elif summed > 1:
        relative = 2 * summed**0.5 * torch.finfo(torch.float32).eps
    if double or summed > 1:
        least = max(least, (2 if double else 1) * relative * scale)

    def allowance(right: torch.Tensor) -> torch.Tensor:
        return torch.maximum(ulp(right, dtype), relative * right.abs()).clamp(min=least)

    return allowance


def _odd(
    got: torch.Tensor, torchs: torch.Tensor, truth: torch.Tensor, any_order: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where NaN or Inf are wrong, and where there are none, so that an error can be taken."""
    rounded = truth.to(got.dtype)
    finite = torch.isfinite(got) & torch.isfinite(rounded)

    def like(other: torch.Tensor) -> torch.Tensor:
        same = (got == other) | (got.isnan() & other.isnan())
        if any_order:
            same |= ~torch.isfinite(got) & ~torch.isfinite(other)
        return same | (torch.isfinite(got) & torch.isfinite(other))

    return ~finite & ~like(torchs) & ~like(rounded), finite


def _demand_no_odd(
    chunks: list[torch.Tensor], got: torch.Tensor, torchs: torch.Tensor, what: str
) -> None:
    if any(bool(c.any()) for c in chunks):
        wrong = _joined(chunks, got)
        finite = bool(torch.isfinite(torchs[wrong]).all())
        text = "NaN or Inf where PyTorch has none" if finite else "NaN or Inf differ from PyTorch's"
        _demand_nowhere(wrong, f"{what}: {text}", got, torchs)


def _at_a_kink(
    got: torch.Tensor, truth: torch.Tensor, sides: Sides, allowance: Allowance
) -> torch.Tensor:
    """Where a rounding of the inputs jumps over a kink, and ``got`` is between the two sides.

    A kink's jump is no higher when the inputs are moved by twice as much; a slope's is.
    """

    def span(fraction: float) -> tuple[torch.Tensor, torch.Tensor]:
        values = torch.stack([truth.double(), *(s.double() for s in sides(fraction))])
        return values.amin(0), values.amax(0)

    low, high = span(1.0)
    far_low, far_high = span(2.0)
    jumps = (high > low) & (far_high - far_low < 1.5 * (high - low))
    allowed = allowance(truth.double())
    value = got.double()
    return jumps & (value >= low - allowed) & (value <= high + allowed)


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
    """Where two results are the same to the bit; a NaN is a NaN."""
    same = bits(first) == bits(second)
    if first.is_floating_point():
        same |= first.isnan() & second.isnan()
    return same


def check_same_bits(first: torch.Tensor, second: torch.Tensor, what: str) -> None:
    """Two results that must be the same to the bit."""
    _demand(first.shape == second.shape, f"{what}: {tuple(first.shape)}, {tuple(second.shape)}")
    _demand(first.dtype == second.dtype, f"{what}: {first.dtype} and {second.dtype}")
    wrong = ~same_bits(first.detach(), second.detach())
    if bool(wrong.any()):
        where = tuple(wrong.nonzero()[0].tolist())
        raise Mismatch(
            f"{what}: first at {where}: {first[where].item()!r} and {second[where].item()!r}; "
            f"{int(wrong.sum())} of {wrong.numel()} elements differ, {pattern.describe(wrong)}"
        )
