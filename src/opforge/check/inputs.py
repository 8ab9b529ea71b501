# SPDX-License-Identifier: Apache-2.0
"""What can be done to a tensor of a case: other sizes, other strides, special values.

Each function takes a tensor and returns one; a reproduction script is made of calls of these.
"""

from __future__ import annotations

import torch
from torch import Tensor

FAR = 2**31  # elements apart, beyond what an int can index
# That huge tensors repeat; a prime, so that an index which wraps around at a power of two meets
# other ones.
VALUES = 10_007


def resample(t: Tensor, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """A contiguous tensor of another shape, its values drawn from those of ``t``.

    So labels stay labels, and masks stay masks.
    """
    count = torch.Size(shape).numel()
    flat = t.detach().cpu().reshape(-1)
    if flat.numel() == 0:
        return torch.zeros(shape, dtype=t.dtype, device=t.device)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(0, flat.numel(), (count,), generator=generator)
    return flat[chosen].reshape(shape).to(t.device)


def repeated(t: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A contiguous tensor of a huge shape that repeats some of ``t``, made on its device."""
    count = torch.Size(shape).numel()
    flat = resample(t, (VALUES,))
    return flat.repeat(-(-count // flat.numel()))[:count].view(shape)


def contiguous(t: Tensor) -> Tensor:
    """Plain row-major memory."""
    return t.detach().contiguous()


def contiguous_copy(t: Tensor) -> Tensor:
    """Memory of its own, to be written to."""
    return t.detach().clone(memory_format=torch.contiguous_format)


def offset(t: Tensor) -> Tensor:
    """The same values, one element further than the allocation starts: ``base[1:]``."""
    flat = t.detach().reshape(-1)
    return torch.cat([flat[:1], flat])[flat[:1].numel() :].view(t.shape)


def transposed(t: Tensor) -> Tensor:
    """The same values, the first dim contiguous instead of the last."""
    order = list(reversed(range(t.dim())))
    return t.detach().permute(order).contiguous().permute(order)


def stepped(t: Tensor) -> Tensor:
    """The same values, every other element of a larger tensor: ``base[..., ::2]``."""
    return torch.stack([t.detach(), t.detach()], -1)[..., 0]


def padded(t: Tensor) -> Tensor:
    """The same values as a slice of wider rows: contiguous within a row, gaps between rows."""
    return torch.nn.functional.pad(t.detach(), (1, 2), value=7.0)[..., 1:-2]


def channels_last(t: Tensor) -> Tensor:
    """The same values in torch's channels_last format (four dims)."""
    return t.detach().contiguous(memory_format=torch.channels_last)


def expanded(t: Tensor) -> Tensor:
    """Every row the first one, by stride 0: ``t[:1].expand_as(t)``."""
    return t.detach()[:1].expand(t.shape)


def expanded_last(t: Tensor) -> Tensor:
    """Every column the first one, by stride 0."""
    return t.detach()[..., :1].expand(t.shape)


def negative_view(t: Tensor) -> Tensor:
    """The same values with torch's lazy minus sign set, as ``z.conj().imag`` has it."""
    return torch._neg_view(-t.detach())


def far_apart(t: Tensor) -> Tensor:
    """The same values with 2^31 elements between the rows; memory in between is never touched."""
    strides = [FAR if d == 0 else s for d, s in enumerate(t.detach().contiguous().stride())]
    span = FAR * (t.shape[0] - 1) + t[0].numel()
    base = torch.empty(span, dtype=t.dtype, device=t.device)
    return base.as_strided(t.shape, strides).copy_(t.detach())


def put(t: Tensor, value: float, seed: int = 0, share: float = 0.0) -> Tensor:
    """A copy with ``value`` at one random place, or at a random share of the places."""
    flat = contiguous_copy(t).reshape(-1)
    if flat.numel():
        generator = torch.Generator().manual_seed(seed)
        count = max(int(share * flat.numel()), 1)
        flat[torch.randperm(flat.numel(), generator=generator)[:count].to(t.device)] = value
    return flat.view(t.shape)


def fill_row(t: Tensor, value: float) -> Tensor:
    """A copy whose first row (along the last dim) is all ``value``."""
    copy = contiguous_copy(t)
    copy[(0,) * (t.dim() - 1)] = value
    return copy


def shifted(t: Tensor, by: float) -> Tensor:
    """A copy with ``by`` added: a mean much larger than the spread."""
    return t.detach() + by


def scaled(t: Tensor, by: float) -> Tensor:
    """A copy times ``by``."""
    return (t.detach().double() * by).to(t.dtype)


def to_dtype(t: Tensor, dtype: torch.dtype) -> Tensor:
    """The same values in another dtype."""
    return t.detach().to(dtype)


def to_device(t: Tensor, device: str) -> Tensor:
    """The same values on another device."""
    return t.detach().to(device)


def scalar(t: Tensor) -> Tensor:
    """The first element, without dims."""
    flat = t.detach().reshape(-1)
    return flat[0].clone() if flat.numel() else torch.zeros((), dtype=t.dtype, device=t.device)


# --- gradients of an output -----------------------------------------------------------------------


def random_gradient(o: Tensor, seed: int = 0) -> Tensor:
    """A contiguous gradient of random values, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.device, o.dtype)


def narrow_gradient(o: Tensor, seed: int = 0) -> Tensor:
    """A slice of wider rows: what ``torch.cat`` after the op hands back."""
    return padded(random_gradient(o, seed)) if o.dim() else random_gradient(o, seed)


def expanded_gradient(o: Tensor, seed: int = 0) -> Tensor:
    """One value for all elements, by stride 0: what ``.sum()`` hands back."""
    return random_gradient(o.new_empty(()), seed).expand(o.shape)


def transposed_gradient(o: Tensor, seed: int = 0) -> Tensor:
    """A gradient whose first dim is contiguous: what ``.t()`` after the op hands back."""
    return transposed(random_gradient(o, seed))
