# SPDX-License-Identifier: Apache-2.0
"""stencil2d: each pixel becomes a weighted sum of itself and its 4 or 8 neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from opforge.op import Backward, Build, Make, Op

# Kinds of boundary. The position in the list is the code for kernels.
BOUNDARIES = ("constant", "replicate", "reflect", "periodic")
CONSTANT, REPLICATE, REFLECT, PERIODIC = range(4)

# Offsets (row, column) of the pixels for 5 or 9 weights.
FIVE = [(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)]
NINE = [(row, col) for row in (-1, 0, 1) for col in (-1, 0, 1)]


def places(weight: Tensor) -> list[tuple[int, int]]:
    """The offset of each weight."""
    return FIVE if weight.shape[0] == 5 else NINE


def edges(n: int, boundary: int) -> tuple[int, int]:
    """The indices that replace -1 and n for n rows or columns."""
    return {REPLICATE: (0, n - 1), REFLECT: (1, n - 2), PERIODIC: (n - 1, 0)}[boundary]


def pad(x: Tensor, boundary: int, fill: float) -> Tensor:
    """x with one more row or column on each side."""
    if boundary == CONSTANT:
        return torch.nn.functional.pad(x, (1, 1, 1, 1), value=fill)
    for dim in (-2, -1):
        before, after = edges(x.shape[dim], boundary)
        x = torch.cat([x.narrow(dim, before, 1), x, x.narrow(dim, after, 1)], dim)
    return x


def neighbours(padded: Tensor, weight: Tensor) -> list[Tensor]:
    """For each weight, the pixels that it is multiplied with."""
    height, width = padded.shape[-2] - 2, padded.shape[-1] - 2
    return [
        padded.narrow(-2, 1 + row, height).narrow(-1, 1 + col, width) for row, col in places(weight)
    ]


def reference(x: Tensor, weight: Tensor, boundary: int, fill: float) -> Tensor:
    """The weighted sum of shifted copies of the padded image."""
    if x.numel() == 0:
        return x * weight.sum()
    first, *others = neighbours(pad(x, boundary, fill), weight)
    y = weight[0] * first
    for k, pixels in enumerate(others, 1):
        y = y + weight[k] * pixels
    return y


def backward_reference(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    boundary: int,
    fill: float,
    needs_x: bool,
    needs_weight: bool,
) -> tuple[Tensor, Tensor]:
    """Each pixel gets the gradients of its uses, including those through the boundary."""
    grad_x, grad_weight = x.new_empty(0), weight.new_empty(0)
    if x.numel() == 0:
        return (
            x.new_zeros(x.shape) if needs_x else grad_x,
            weight.new_zeros(weight.shape) if needs_weight else grad_weight,
        )
    if needs_x:
        grad_x = fold(spread(grad_y, weight), boundary)
    if needs_weight:
        pixels = neighbours(pad(x, boundary, fill), weight)
        grad_weight = torch.stack([(grad_y * p).sum() for p in pixels]).to(weight.dtype)
    return grad_x, grad_weight


def spread(grad_y: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the padded image."""
    height, width = grad_y.shape[-2:]
    padded = grad_y.new_zeros(*grad_y.shape[:-2], height + 2, width + 2)
    for k, (row, col) in enumerate(places(weight)):
        sides = (1 + col, 1 - col, 1 + row, 1 - row)
        padded = padded + torch.nn.functional.pad(weight[k] * grad_y, sides)
    return padded


def fold(padded: Tensor, boundary: int) -> Tensor:
    """The gradient of the image from that of the padded image: the adjoint of :func:`pad`."""
    for dim in (-2, -1):
        n = padded.shape[dim] - 2
        image = padded.narrow(dim, 1, n)
        if boundary != CONSTANT:
            places = torch.tensor(edges(n, boundary), device=padded.device)
            beyond = torch.cat([padded.narrow(dim, 0, 1), padded.narrow(dim, n + 1, 1)], dim)
            image = image.index_add(dim, places, beyond)
        padded = image
    return padded


def validate(x: Tensor, weight: Tensor, boundary: int) -> None:
    """x is an image, weight has 5 or 9 values, and x is large enough for the boundary."""
    if x.dim() < 2:
        raise ValueError(
            "opforge.stencil2d: x must have at least two dims, rows and columns; "
            f"got shape {tuple(x.shape)}"
        )
    if weight.dim() != 1 or weight.shape[0] not in (5, 9):
        raise ValueError(
            "opforge.stencil2d: weight must have shape (5,): centre, up, down, left, right; "
            f"or (9,): three rows of three; got {tuple(weight.shape)} for x of shape "
            f"{tuple(x.shape)}"
        )
    if weight.dtype not in (x.dtype, torch.float32):
        raise TypeError(
            f"opforge.stencil2d: weight is {weight.dtype}; it must be {x.dtype}, as x is, or "
            "torch.float32"
        )
    if not 0 <= boundary < len(BOUNDARIES):
        raise ValueError(
            f"opforge.stencil2d: boundary must be from 0 to {len(BOUNDARIES) - 1}, got {boundary}"
        )
    if boundary == REFLECT and min(x.shape[-2:]) < 2:
        raise ValueError(
            "opforge.stencil2d: boundary 'reflect' needs at least two rows and two columns; "
            f"x has shape {tuple(x.shape)}"
        )


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """All boundaries with both kinds of stencils; tiny, empty, several tiles, strided."""
    for boundary in range(len(BOUNDARIES)):
        yield make(5, 7), make(5), boundary, 0.5
        yield make(2, 35, 48), make(9), boundary, -1.0
    yield make(1, 1), make(9), CONSTANT, 0.0
    yield make(1, 1), make(9), REPLICATE, 0.0
    yield make(1, 3), make(5), PERIODIC, 0.0
    yield make(2, 2), make(9), REFLECT, 0.0
    yield make(0, 4), make(5), CONSTANT, 0.0
    yield make(3, 0, 4), make(9), PERIODIC, 0.0
    yield make(66, 300), make(9), REFLECT, 0.0
    yield make(33, 257), make(5), CONSTANT, 0.0
    yield make(2, 3, 9, 40), make(9).float(), REPLICATE, 0.0
    yield make(40, 24).t(), make(10)[::2], CONSTANT, 2.0
    yield make(17, 40)[:, 8:], make(9), PERIODIC, 0.0
    yield make(17, 40)[:, 1:-2], make(9), REPLICATE, 0.0


def conv2d() -> Callable[..., Tensor]:
    """torch's convolution, which only supports zeros beyond the edges."""

    def run(x: Tensor, weight: Tensor) -> Tensor:
        kernel = weight.new_zeros(9)
        order = torch.tensor([4 + 3 * row + col for row, col in places(weight)])
        kernel = kernel.index_put((order.to(weight.device),), weight)
        planes = x.reshape(-1, 1, *x.shape[-2:])
        y = torch.nn.functional.conv2d(planes, kernel.to(x.dtype).view(1, 1, 3, 3), padding=1)
        return y.view(x.shape)

    return run


op = Op(
    schema="stencil2d(Tensor x, Tensor weight, int boundary, float fill) -> Tensor y",
    reference=reference,
    backward=Backward(
        "stencil2d_backward(Tensor grad_y, Tensor x, Tensor weight, int boundary, float fill, "
        "bool needs_x, bool needs_weight) -> (Tensor grad_x, Tensor grad_weight)",
        backward_reference,
    ),
    validate=validate,
    cases=cases,
    operations=lambda x, weight: (2 * len(weight) - 1) * x.numel(),
    sized=lambda make, *shape: {
        "5 points": (make(*shape), make(5), CONSTANT, 0.0),
        "9 points": (make(*shape), make(9), CONSTANT, 0.0),
    },
    peers={"conv2d": conv2d},
    rowwise=True,
    build=Build(by_dtype=["cuda"]),
)


def stencil2d(x: Tensor, weight: Tensor, boundary: str = "zero", fill: float = 0.0) -> Tensor:
    """Weighted sum of each pixel and its neighbours, over the last two dims of ``x``.

    Args:
        x: images, with any number of dims before the last two.
        weight: 5 values (centre, up, down, left, right) or 9 (a 3 x 3 matrix, row by row), in the
            dtype of ``x`` or float32.
        boundary: the pixels beyond the edges: ``"zero"``; ``"constant"``, the value ``fill``;
            ``"replicate"``, the nearest pixel; ``"reflect"``, the image mirrored at its outermost
            pixels; ``"periodic"``, the opposite side.
        fill: the value for ``"constant"``.
    """
    if boundary == "zero":
        boundary, fill = "constant", 0.0
    if boundary not in BOUNDARIES:
        raise ValueError(
            f"opforge.stencil2d: boundary must be one of zero, {', '.join(BOUNDARIES)}, "
            f"got {boundary!r}"
        )
    y: Tensor = op(x, weight, BOUNDARIES.index(boundary), fill)
    return y
