# SPDX-License-Identifier: Apache-2.0
"""Code that swiglu, geglu and reglu share: inputs as two tensors or one packed tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from opforge.op import Make


def halves(gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """``gate`` and ``up``. Without ``up``, they are the halves of the last dim of ``gate``."""
    if up is not None:
        return gate, up
    first, second = gate.chunk(2, -1)
    return first, second


def gradients(
    grad_y: Tensor,
    gate: Tensor,
    up: Tensor | None,
    act: Callable[..., Any],
    slope: Callable[..., Any],
) -> tuple[Tensor, Tensor]:
    """The gradients of ``act(gate) * up``. ``slope(passed, gate)`` is that of the activation.

    For a packed input, the first holds both gradients and the second is empty.
    """
    first, second = halves(gate, up)
    grad_first, grad_second = slope(grad_y * second, first), grad_y * act(first)
    if up is not None:
        return grad_first, grad_second
    return torch.cat([grad_first, grad_second], -1), gate.new_zeros(0)


def validate(op: str, gate: Tensor, up: Tensor | None) -> None:
    """gate and up have one shape and dtype; without up, the last dim of gate is even."""
    if up is None:
        if gate.dim() == 0:
            raise ValueError(
                f"opforge.{op}: without up, gate must have at least one dimension, got a scalar"
            )
        if gate.shape[-1] % 2:
            raise ValueError(
                f"opforge.{op}: without up, the last dim of gate holds the halves gate and up "
                f"and must be even; gate has shape {tuple(gate.shape)}"
            )
        return
    if gate.shape != up.shape:
        raise ValueError(
            f"opforge.{op}: gate and up must have one shape, "
            f"got gate {tuple(gate.shape)} and up {tuple(up.shape)}"
        )
    if gate.dtype != up.dtype:
        raise TypeError(
            f"opforge.{op}: gate is {gate.dtype} but up is {up.dtype}; "
            "convert one, as in up.to(gate.dtype)"
        )


def cases(make: Make) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Separate and packed inputs: sizes around the vector width, empty, strided, unaligned."""
    for shape in [(), (0, 4), (3, 0), (5,), (7, 31), (64, 33), (2, 3, 1025), (20, 64)]:
        yield make(*shape), make(*shape)
    yield make(40, 24).t(), make(24, 40)
    yield make(16, 64)[:, :32], make(16, 64)[:, 32:]
    yield make(33, 66)[:, 1:], make(33, 65)
    for shape in [(10,), (0, 8), (3, 2), (7, 62), (9, 64), (2, 5, 130), (4, 2050)]:
        yield make(*shape), None
    yield make(16, 48)[::2], None
    yield make(6, 5, 32)[:, 1:4], None
    yield make(24, 40).t(), None


def sized(make: Make, *shape: int) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Arguments for outputs of this shape, separate and packed."""
    return {
        "separate": (make(*shape), make(*shape)),
        "packed": (make(*shape[:-1], 2 * shape[-1]), None),
    }


def outputs(gate: Tensor, up: Tensor | None) -> int:
    """The number of output elements."""
    return gate.numel() // (2 if up is None else 1)


def overwriting(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a peer whose backward overwrites its inputs, so that it gets copies.

    It only copies if a backward follows, which is timed separately.
    """

    def run(gate: Tensor, up: Tensor | None) -> Any:
        pair = halves(gate, up)
        return apply(*[t.clone() for t in pair] if torch.is_grad_enabled() else pair)

    return run
