# SPDX-License-Identifier: Apache-2.0
"""rope: rotary position embedding of queries and keys, both in one launch.

q is (..., seq, heads, dim), and k is the same with its own number of heads, as a projection returns
them. Slices of one packed qkv are read without a copy. Row i of cos and sin, (positions, rotary
dim / 2), belongs to position i. Pairs of elements are rotated by the angle; the pairs are (j, j +
rotary dim / 2) or, interleaved, (2j, 2j + 1). Elements beyond the rotary dim are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import opforge
from opforge.op import Backward, Make, Op
from opforge.registration.arguments import can_look_at


def reference(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    interleaved: bool,
) -> tuple[Tensor, Tensor]:
    """The rotary part of a token out of range becomes NaN. Without k, k_out is empty."""
    if positions is None:
        positions = torch.arange(q.shape[-3], device=q.device)
    c, s = _rows(cos, positions), _rows(sin, positions)
    return (
        _rotate(q, c, s, interleaved),
        q.new_empty(0) if k is None else _rotate(k, c, s, interleaved),
    )


def backward_reference(
    grad_q_out: Tensor,
    grad_k_out: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    interleaved: bool,
) -> tuple[Tensor, Tensor]:
    """The same rotation by the negative angle."""
    k = None if grad_k_out.dim() == 1 else grad_k_out
    return reference(grad_q_out, k, cos, -sin, positions, interleaved)


def _rows(table: Tensor, positions: Tensor) -> Tensor:
    """The row of the table for each token, for all heads."""
    count = table.shape[0]
    valid = (positions >= 0) & (positions < count)
    rows = table.detach()[positions.clamp(0, count - 1)]
    return torch.where(valid.unsqueeze(-1), rows, torch.nan).unsqueeze(-2)


def _rotate(x: Tensor, c: Tensor, s: Tensor, interleaved: bool) -> Tensor:
    rotary = 2 * c.shape[-1]
    rotated, rest = x[..., :rotary], x[..., rotary:]
    a, b = (rotated[..., ::2], rotated[..., 1::2]) if interleaved else rotated.chunk(2, -1)
    pair = a * c - b * s, b * c + a * s
    rotated = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat([rotated.to(x.dtype), rest], -1)


def validate(
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, positions: Tensor | None
) -> None:
    """Shapes and dtypes match; the values of positions are not read here."""
    if q.dim() < 3:
        raise ValueError(f"opforge.rope: q must be (..., seq, heads, dim), got {tuple(q.shape)}")
    if k is not None:
        if k.shape[:-2] != q.shape[:-2] or k.shape[-1] != q.shape[-1]:
            raise ValueError(
                f"opforge.rope: k must have the shape of q, {tuple(q.shape)}, except the number "
                f"of heads; got {tuple(k.shape)}"
            )
        if k.dtype != q.dtype:
            raise TypeError(
                f"opforge.rope: q is {q.dtype} but k is {k.dtype}; convert one, as in k.to(q.dtype)"
            )
    if cos.dim() != 2 or sin.shape != cos.shape:
        raise ValueError(
            "opforge.rope: cos and sin must both be (positions, rotary dim / 2), "
            f"got {tuple(cos.shape)} and {tuple(sin.shape)}"
        )
    if cos.shape[0] == 0 or 2 * cos.shape[1] > q.shape[-1]:
        raise ValueError(
            f"opforge.rope: cos must have one row or more, of at most dim / 2 = {q.shape[-1] // 2} "
            f"columns; got {tuple(cos.shape)} for q of shape {tuple(q.shape)}"
        )
    for name, table in (("cos", cos), ("sin", sin)):
        if table.dtype not in (q.dtype, torch.float32) or table.dtype != cos.dtype:
            raise TypeError(
                f"opforge.rope: {name} is {table.dtype}; cos and sin must both be float32 or have "
                f"the dtype of q, {q.dtype}"
            )
    if positions is None:
        if q.shape[-3] > cos.shape[0]:
            raise ValueError(
                f"opforge.rope: cos has {cos.shape[0]} positions, shape {tuple(cos.shape)}, but q "
                f"of shape {tuple(q.shape)} has {q.shape[-3]} tokens in a row"
            )
        return
    tokens = q.shape[:-2]
    fits = positions.dim() <= len(tokens) and all(
        n in (1, m) for n, m in zip(reversed(positions.shape), reversed(tokens), strict=False)
    )
    if not fits:
        raise ValueError(
            f"opforge.rope: positions must broadcast to the tokens of q, {tuple(tokens)}, where q "
            f"has shape {tuple(q.shape)}; got {tuple(positions.shape)}"
        )


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Both kinds of pairs, heads around the vector width, grouped, packed, partial, positions."""

    def angles(positions: int, rotary: int, own: bool = False) -> tuple[Tensor, Tensor]:
        made = opforge.nn.RotaryEmbedding(rotary, positions, device=make.device)
        made.to(make.dtype if own else torch.float32)
        return made.cos, made.sin

    def at(*shape: int, limit: int) -> Tensor:
        generator = torch.Generator().manual_seed(make.seed)
        return torch.randint(0, limit, shape, generator=generator).to(make.device)

    for own in (False, True):
        yield make(2, 7, 4, 64), make(2, 7, 2, 64), *angles(9, 64, own), None, own
        yield make(5, 3, 6), make(5, 1, 6), *angles(5, 6, own), None, not own
        yield make(2, 5, 3, 80), make(2, 5, 1, 80), *angles(8, 48, own), at(2, 5, limit=8), own
    yield make(2, 7, 4, 32), None, *angles(11, 32), at(7, limit=11), False
    yield make(3, 2, 5, 2, 10), make(3, 2, 5, 1, 10), *angles(6, 4), at(2, 1, limit=6), True
    packed = make(2, 9, 8, 16)
    yield packed[:, :, :5], packed[:, :, 5:7], *angles(9, 16), at(1, 9, limit=9), True
    yield packed[..., 1:11], packed[:, :, 6:, 1:11], *angles(9, 10), None, False
    yield make(16, 9, 2, 3).permute(1, 2, 3, 0), None, *angles(2, 16), None, False
    yield make(0, 7, 4, 8), make(0, 7, 2, 8), *angles(7, 8), None, False
    yield make(2, 0, 4, 8), None, *angles(1, 8), None, True


def sized(make: Any, rows: int, cols: int) -> tuple[Any, ...]:
    """rows x cols: tokens and elements per token; heads of 128, one key head per four queries."""
    dim = 128 if cols % 128 == 0 else cols
    heads = cols // dim
    q, k = make(1, rows, heads, dim), make(1, rows, -(-heads // 4), dim)
    angles = opforge.nn.RotaryEmbedding(dim - dim % 2, rows, device=make.device)
    return q, k, angles.cos, angles.sin, None, False


def liger() -> Callable[..., tuple[Tensor, Tensor]]:
    """Liger's Triton kernels: half-split pairs of whole heads, which overwrite their inputs."""
    # Imported from its module, because the package may replace it by another backend.
    from liger_kernel.ops.rope import LigerRopeFunction

    def run(
        q: Tensor,
        k: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor | None,
        interleaved: bool,
    ) -> tuple[Tensor, Tensor]:
        if interleaved or k is None or q.dim() != 4 or 2 * cos.shape[1] != q.shape[-1]:
            raise NotImplementedError("Liger rotates whole heads of q and k, half-split")
        rows = slice(q.shape[1]) if positions is None else positions
        shape = -1, q.shape[1], q.shape[3]
        c, s = (torch.cat([t[rows], t[rows]], -1).reshape(shape) for t in (cos, sin))
        heads_first = q.clone().transpose(1, 2), k.clone().transpose(1, 2)
        rotated = LigerRopeFunction.apply(*heads_first, c, s)
        return tuple(t.transpose(1, 2) for t in rotated)

    return run


op = Op(
    schema="rope(Tensor q, Tensor? k, Tensor cos, Tensor sin, Tensor? positions, bool interleaved) "
    "-> (Tensor q_out, Tensor k_out)",
    reference=reference,
    backward=Backward(
        "rope_backward(Tensor grad_q_out, Tensor grad_k_out, Tensor cos, Tensor sin, "
        "Tensor? positions, bool interleaved) -> (Tensor grad_q, Tensor grad_k)",
        backward_reference,
    ),
    own_dtypes={"positions": (torch.int64,)},
    validate=validate,
    cases=cases,
    # Two products and a sum for each element.
    operations=lambda q, k: 3 * (q.numel() + (0 if k is None else k.numel())),
    sized=sized,
    peers={"liger": liger},
)


def rope(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    interleaved: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Rotate queries and keys by the angles of their positions. Returns ``(q, k)``.

    Args:
        q: (..., seq, heads, dim).
        k: the same with its own number of heads, or None; then None is returned for it.
        cos: (positions, rotary dim / 2), float32 or the dtype of ``q``; no gradient.
        sin: like ``cos``.
        positions: int64, broadcasts to (..., seq); 0, 1, ... by default. A position out of range
            raises IndexError on the CPU. On a GPU, a check would have to wait for it. There, and
            when compiled, the rotary part of that token becomes NaN.
        interleaved: pairs are (2j, 2j + 1) instead of (j, j + rotary dim / 2).
    """
    if positions is not None and can_look_at(positions) and positions.device.type == "cpu":
        low, high = positions.aminmax()
        if low < 0 or high >= cos.shape[0]:
            raise IndexError(
                f"opforge.rope: positions go from {int(low)} to {int(high)}, but cos and sin have "
                f"{cos.shape[0]} positions"
            )
    q_out, k_out = op(q, k, cos, sin, positions, interleaved)
    return q_out, None if k is None else k_out
