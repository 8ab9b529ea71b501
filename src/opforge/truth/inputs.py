# SPDX-License-Identifier: Apache-2.0
"""Changes to a tensor of a case: other sizes, other strides, special values.

Each function takes a tensor and returns a new one. Reproduction scripts call these functions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from opforge.truth import guard

FAR = 2**31  # elements apart: more than an int can index
# Huge tensors repeat this many elements. It is prime, so that an index that wraps around at a power
# of two reads another value.
VALUES = 10_007


def resample(t: Tensor, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """A contiguous tensor of another shape with values drawn from those of ``t``.

    Labels therefore stay labels, and masks stay masks.
    """
    count = torch.Size(shape).numel()
    flat = t.detach().cpu().reshape(-1)
    if flat.numel() == 0:
        return torch.zeros(shape, dtype=t.dtype, device=t.device)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(0, flat.numel(), (count,), generator=generator)
    return flat[chosen].reshape(shape).to(t.device)


def repeated(t: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A contiguous tensor of a huge shape that repeats some values of ``t``, on its device."""
    count = torch.Size(shape).numel()
    flat = resample(t, (VALUES,))
    return flat.repeat(-(-count // flat.numel()))[:count].view(shape)


def contiguous(t: Tensor) -> Tensor:
    """The same values in contiguous memory."""
    return t.detach().contiguous()


def contiguous_copy(t: Tensor) -> Tensor:
    """A contiguous copy, which may be written to."""
    return t.detach().clone(memory_format=torch.contiguous_format)


def offset(t: Tensor) -> Tensor:
    """The same values, starting one element after the start of the allocation: ``base[1:]``."""
    flat = t.detach().reshape(-1)
    return torch.cat([flat[:1], flat])[flat[:1].numel() :].view(t.shape)


def transposed(t: Tensor) -> Tensor:
    """The same values with the first dim contiguous instead of the last."""
    order = list(reversed(range(t.dim())))
    return t.detach().permute(order).contiguous().permute(order)


def stepped(t: Tensor) -> Tensor:
    """The same values as every other element of a larger tensor: ``base[..., ::2]``."""
    return torch.stack([t.detach(), t.detach()], -1)[..., 0]


def padded(t: Tensor) -> Tensor:
    """The same values as a slice of wider rows: contiguous within a row, gaps between rows."""
    return torch.nn.functional.pad(t.detach(), (1, 2), value=7.0)[..., 1:-2]


def channels_last(t: Tensor) -> Tensor:
    """The same values in torch's channels_last format (four dims)."""
    return t.detach().contiguous(memory_format=torch.channels_last)


def expanded(t: Tensor) -> Tensor:
    """All rows equal to the first one, with stride 0: ``t[:1].expand_as(t)``."""
    return t.detach()[:1].expand(t.shape)


def expanded_last(t: Tensor) -> Tensor:
    """Every column the first one, by stride 0."""
    return t.detach()[..., :1].expand(t.shape)


def windows(t: Tensor) -> Tensor:
    """Overlapping rows, each starting one element after the previous one, as from ``unfold``."""
    flat, strides, span = t.detach().reshape(-1), [1] * t.dim(), 1
    for d in reversed(range(t.dim())):
        strides[d] = 1 if d >= t.dim() - 2 else span
        span += (t.shape[d] - 1) * strides[d]
    if not flat.numel():
        return t.detach()
    return flat.repeat(-(-span // flat.numel())).as_strided(t.shape, strides)


def negative_view(t: Tensor) -> Tensor:
    """The same values with torch's lazy negative bit set, as in ``z.conj().imag``."""
    return torch._neg_view(-t.detach())


def more_dims(t: Tensor, count: int) -> Tensor:
    """The tensor repeated twice along each of ``count`` new leading dims."""
    return t.detach().expand((2,) * count + t.shape).contiguous()


def far_apart(t: Tensor, dim: int = 0) -> Tensor:
    """The same values with a stride of 2^31 elements along a dim. Most memory is never touched."""
    first = t.detach().movedim(dim, 0).contiguous()
    strides = (FAR, *first.stride()[1:])
    span = FAR * (first.shape[0] - 1) + first[0].numel()
    base = torch.empty(span, dtype=t.dtype, device=t.device)
    return base.as_strided(first.shape, strides).copy_(first).movedim(0, dim)


def against_page(t: Tensor, side: guard.Side, name: str, writable: bool = False) -> Tensor:
    """The same values in read-only memory that ends or begins at an inaccessible page."""
    return guard.against_page(t, side, name, writable)


def put(t: Tensor, value: float, seed: int = 0, share: float = 0.0) -> Tensor:
    """A copy with ``value`` at one random position, or at a random share of all positions."""
    flat = contiguous_copy(t).reshape(-1)
    if flat.numel():
        generator = torch.Generator().manual_seed(seed)
        count = max(int(share * flat.numel()), 1)
        flat[torch.randperm(flat.numel(), generator=generator)[:count].to(t.device)] = value
    return flat.view(t.shape)


def fill_row(t: Tensor, value: float) -> Tensor:
    """A copy whose first row (along the last dim) is filled with ``value``."""
    copy = contiguous_copy(t)
    copy[(0,) * (t.dim() - 1)] = value
    return copy


def shifted(t: Tensor, by: float) -> Tensor:
    """A copy with ``by`` added, so that the mean is much larger than the spread."""
    return t.detach() + by


def scaled(t: Tensor, by: float) -> Tensor:
    """A copy multiplied by ``by``."""
    return (t.detach().double() * by).to(t.dtype)


def wide_range(t: Tensor, seed: int = 0) -> Tensor:
    """Values of both signs from the smallest normal number to 2^40, or the limit of the dtype."""
    info = torch.finfo(t.dtype)
    least, most = math.log2(info.tiny), min(math.log2(info.max) - 6, 40.0)
    generator = torch.Generator().manual_seed(seed)
    power = torch.rand(t.shape, generator=generator, dtype=torch.float64) * (most - least) + least
    sign = torch.randint(0, 2, t.shape, generator=generator) * 2 - 1
    return (torch.exp2(power) * sign).to(t.device, t.dtype)


def equal(t: Tensor, value: float = 0.3) -> Tensor:
    """The same value everywhere, in memory of its own."""
    return torch.full_like(t, value, memory_format=torch.contiguous_format)


def ordered(t: Tensor) -> Tensor:
    """The same values, sorted along the last dim."""
    return t.detach().sort(-1).values if t.dim() else t.detach()


def one_hot(t: Tensor) -> Tensor:
    """One 1 in each row, and 0 elsewhere."""
    hot = torch.zeros_like(t, memory_format=torch.contiguous_format)
    if t.dim() and t.numel():
        rows = hot.view(-1, t.shape[-1])
        at = torch.arange(rows.shape[0], device=t.device) * 7 % t.shape[-1]
        rows.scatter_(1, at.unsqueeze(1), 1)
    return hot


def to_dtype(t: Tensor, dtype: torch.dtype) -> Tensor:
    """The same values in another dtype."""
    return t.detach().to(dtype)


def to_device(t: Tensor, device: str) -> Tensor:
    """The same values on another device."""
    return t.detach().to(device)


def scalar(t: Tensor) -> Tensor:
    """The first element as a tensor without dims."""
    flat = t.detach().reshape(-1)
    return flat[0].clone() if flat.numel() else torch.zeros((), dtype=t.dtype, device=t.device)


# --- gradients of an output -----------------------------------------------------------------------


def random_gradient(o: Tensor, seed: int = 0) -> Tensor:
    """A contiguous gradient of random values, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.device, o.dtype)


def narrow_gradient(o: Tensor, seed: int = 0) -> Tensor:
    """A slice of wider rows, as ``torch.cat`` after the op passes back."""
    return padded(random_gradient(o, seed)) if o.dim() else random_gradient(o, seed)


def expanded_gradient(o: Tensor, seed: int = 0) -> Tensor:
    """One value for all elements, with stride 0, as ``.sum()`` passes back."""
    return random_gradient(o.new_empty(()), seed).expand(o.shape)


def far_apart_gradient(o: Tensor, seed: int = 0) -> Tensor:
    """Two rows far apart, as slicing a wide tensor after the op passes back. For other outputs, an
    ordinary gradient."""
    gradient = random_gradient(o, seed)
    return far_apart(gradient) if o.dim() and o.shape[0] == 2 else gradient


def transposed_gradient(o: Tensor, seed: int = 0) -> Tensor:
    """A gradient whose first dim is contiguous, as ``.t()`` after the op passes back."""
    return transposed(random_gradient(o, seed))


def constant_gradient(o: Tensor, seed: int = 0) -> Tensor:
    """The same value everywhere, in memory of its own."""
    return torch.full_like(o, 0.75, memory_format=torch.contiguous_format)


def sparse_gradient(o: Tensor, seed: int = 0) -> Tensor:
    """One element, and 0 elsewhere, as ``y[i].backward()`` passes back."""
    flat = random_gradient(o, seed).reshape(-1)
    chosen = torch.arange(flat.numel(), device=o.device) == seed % max(flat.numel(), 1)
    return flat.masked_fill(~chosen, 0).view(o.shape)


def nan_gradient(o: Tensor, seed: int = 0) -> Tensor:
    """One NaN among random values."""
    return put(random_gradient(o, seed), float("nan"), seed)


def infinite_gradient(o: Tensor, seed: int = 0) -> Tensor:
    """Inf and -Inf among random values, as a too large loss scale produces."""
    return put(put(random_gradient(o, seed), float("inf"), seed), -float("inf"), seed + 1)


def zero_gradient(o: Tensor, seed: int = 0) -> Tensor:
    """0.0 and -0.0 among random values."""
    return put(put(random_gradient(o, seed), 0.0, seed, 0.2), -0.0, seed + 1, 0.2)


def tiny_gradient(o: Tensor, seed: int = 0) -> Tensor:
    """Values from the smallest normal number of the dtype up, far below its usual ones."""
    info = torch.finfo(o.dtype)
    return scaled(random_gradient(o, seed), info.tiny * 64)


def subnormal_gradient(o: Tensor, seed: int = 0) -> Tensor:
    """Values below the smallest normal number."""
    return scaled(random_gradient(o, seed), torch.finfo(o.dtype).tiny / 8)


def huge_gradient(o: Tensor, seed: int = 0) -> Tensor:
    """Values with a loss scale of 2^16, or as large as the dtype allows."""
    scale = min(2.0**16, torch.finfo(o.dtype).max / 16)
    return scaled(random_gradient(o, seed).clamp(-4, 4), scale)


def gradient_against_page(o: Tensor, seed: int = 0) -> Tensor:
    """A read-only gradient next to an inaccessible page. It must be made inside ``guard.pages``."""
    gradient = random_gradient(o, seed)
    return guard.against_page(gradient, guard.active_side(), "the gradient of the output")


def repeated_gradient(o: Tensor, seed: int = 0) -> Tensor:
    """All rows equal to the first one, with stride 0, as ``.sum(0)`` after the op passes back."""
    return expanded(random_gradient(o, seed)) if o.dim() else random_gradient(o, seed)


def column_gradient(o: Tensor, seed: int = 0) -> Tensor:
    """All columns equal to the first, with stride 0, as ``.sum(-1)`` after the op passes back."""
    return expanded_last(random_gradient(o, seed)) if o.dim() else random_gradient(o, seed)


def offset_gradient(o: Tensor, seed: int = 0) -> Tensor:
    """A gradient that starts one element after the start of its allocation."""
    return offset(random_gradient(o, seed))
