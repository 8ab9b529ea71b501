# SPDX-License-Identifier: Apache-2.0
"""Error relative to truth: the float64 reference.

A kernel may err by the largest of: k times what PyTorch itself errs in the same dtype (k = 2
forward, 3 backward), one ulp of the output, and for sums of n terms 2 sqrt(n) eps of the
accumulation type times the largest term (2: in float64 the truth errs that much too). In float64
only the last two apply. There is no other tolerance.
"""

from __future__ import annotations

import torch

from opforge.check import pattern


class Mismatch(AssertionError):
    """A result is further from the truth than it may be."""


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
    return 2.0 ** torch.floor(torch.log2(size)) * info.eps


def check(
    got: torch.Tensor,
    torchs: torch.Tensor,
    truth: torch.Tensor,
    k: int,
    summed: int = 0,
    scale: float = 1.0,
    what: str = "output",
) -> None:
    """Compare ``got`` with ``truth``; ``torchs`` is PyTorch's own result in the same dtype.

    ``summed`` is how many terms each element adds up, ``scale`` how large they are.
    """
    _demand(got.shape == truth.shape, f"{what}: shape {tuple(got.shape)}, not {tuple(truth.shape)}")
    _demand(got.dtype == torchs.dtype, f"{what}: dtype {got.dtype}, not {torchs.dtype}")
    got, torchs, truth = got.detach().cpu(), torchs.detach().cpu(), truth.detach().cpu().double()
    odd = ~torch.isfinite(torchs)
    same = (got == torchs) | (got.isnan() & torchs.isnan())
    _demand_nowhere(odd & ~same, f"{what}: NaN or Inf differ from PyTorch's", got, torchs)
    _demand_nowhere(
        ~odd & ~torch.isfinite(got), f"{what}: NaN or Inf where PyTorch has none", got, torchs
    )
    if bool(odd.all()):
        return
    dtype = got.dtype
    error = (got.double() - truth).abs().masked_fill(odd, 0.0)
    allowed = ulp(truth, dtype)
    if dtype != torch.float64:
        torchs_error = (torchs.double() - truth).abs()[~odd].max()
        allowed = allowed.clamp(min=k * float(torchs_error))
    if summed:
        accumulate = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
        allowed = allowed.clamp(min=2 * summed**0.5 * accumulate * scale)
    wrong = ~odd & ~(error <= allowed)
    if bool(wrong.any()):
        excess = torch.where(wrong, error - allowed, -1.0)
        worst = _coordinate(excess == excess.max())
        raise Mismatch(
            f"{what}: error {float(error[worst]):.3g} where {float(allowed[worst]):.3g} is "
            f"allowed, at {worst}: got {float(got[worst]):.8g}, truth {float(truth[worst]):.8g}, "
            f"PyTorch has {float(torchs[worst]):.8g}; {_extent(wrong)}"
        )


def _demand_nowhere(
    wrong: torch.Tensor, text: str, got: torch.Tensor, torchs: torch.Tensor
) -> None:
    if bool(wrong.any()):
        first = _coordinate(wrong)
        raise Mismatch(
            f"{text}, at {first}: got {float(got[first])}, PyTorch has {float(torchs[first])}; "
            f"{_extent(wrong)}"
        )


def _extent(wrong: torch.Tensor) -> str:
    return f"{int(wrong.sum())} of {wrong.numel()} elements are wrong, {pattern.describe(wrong)}"


def _coordinate(wrong: torch.Tensor) -> tuple[int, ...]:
    return tuple(wrong.nonzero()[0].tolist())
