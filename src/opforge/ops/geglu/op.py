# SPDX-License-Identifier: Apache-2.0
"""geglu: y = gelu(gate) * up, from two tensors or the two halves of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import opforge
from opforge.op import Backward, Build, Make, Op
from opforge.ops.families import gated

APPROXIMATE = {"none": False, "tanh": True}


def gelu(x: Tensor, tanh: bool) -> Tensor:
    """torch's gelu, exact or with tanh."""
    return functional.gelu(x, approximate="tanh" if tanh else "none")


def reference(gate: Tensor, up: Tensor | None, tanh: bool) -> Tensor:
    """The formula."""
    gate, up = gated.halves(gate, up)
    return gelu(gate, tanh) * up


def backward_reference(
    grad_y: Tensor, gate: Tensor, up: Tensor | None, tanh: bool
) -> tuple[Tensor, Tensor]:
    """Compute the activation again, because only gate and up are saved."""

    def slope(passed: Tensor, gate: Tensor) -> Tensor:
        how = "tanh" if tanh else "none"
        result: Tensor = torch.ops.aten.gelu_backward(passed, gate, approximate=how)
        return result

    return gated.gradients(grad_y, gate, up, lambda x: gelu(x, tanh), slope)


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """The cases of all gated ops, with and without tanh."""
    for i, (gate, up) in enumerate(gated.cases(make)):
        yield gate, up, i % 2 == 1


def sized(make: Make, *shape: int) -> dict[str, tuple[Any, ...]]:
    """The variant with tanh, which is more common and needs less arithmetic than erf."""
    found: dict[str, tuple[Any, ...]] = {
        name: (*pair, True) for name, pair in gated.sized(make, *shape).items()
    }
    return {**found, "erf": (make(*shape), make(*shape), False)}


def liger() -> Callable[..., Any]:
    """Liger's Triton kernels, with tanh. They copy the halves of a packed input."""
    # Imported from its module, because the package may replace it by another backend.
    from liger_kernel.ops.geglu import LigerGELUMulFunction

    apply = gated.overwriting(LigerGELUMulFunction.apply)

    def run(gate: Tensor, up: Tensor | None, tanh: bool) -> Any:
        if not tanh:
            raise NotImplementedError("liger's geglu only supports tanh")
        return apply(gate, up)

    return run


op = Op(
    schema="geglu(Tensor gate, Tensor? up, bool tanh) -> Tensor y",
    reference=reference,
    backward=Backward(
        "geglu_backward(Tensor grad_y, Tensor gate, Tensor? up, bool tanh) "
        "-> (Tensor grad_gate, Tensor grad_up)",
        backward_reference,
    ),
    validate=partial(gated.validate, "geglu"),
    cases=cases,
    # Three for the cubic, exp, plus 1, one over it, times gate, times up.
    operations=lambda gate, up: 8 * gated.outputs(gate, up),
    sized=sized,
    peers={"liger": liger},
    autocast="promote",
    module=lambda tanh: opforge.nn.GEGLU("tanh" if tanh else "none"),
    build=Build(by_dtype=["cuda"]),
)


def geglu(gate: Tensor, up: Tensor | None = None, approximate: str = "none") -> Tensor:
    """``gelu(gate) * up``. Without ``up``, the last dim of ``gate`` holds both halves.

    ``approximate`` is ``"none"`` or ``"tanh"``, as in :func:`torch.nn.functional.gelu`.
    """
    if approximate not in APPROXIMATE:
        raise ValueError(
            f'opforge.geglu: approximate must be "none" or "tanh", got {approximate!r}'
        )
    y: Tensor = op(gate, up, APPROXIMATE[approximate])
    return y
