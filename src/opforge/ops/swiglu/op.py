# SPDX-License-Identifier: Apache-2.0
"""swiglu: y = silu(gate) * up, from two tensors or the two halves of one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import opforge
from opforge.op import Backward, Build, Op
from opforge.ops.families import gated


def reference(gate: Tensor, up: Tensor | None) -> Tensor:
    """The formula."""
    gate, up = gated.halves(gate, up)
    return functional.silu(gate) * up


def backward_reference(grad_y: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute the activation again, because only gate and up are saved."""

    def slope(passed: Tensor, gate: Tensor) -> Tensor:
        sigmoid = torch.sigmoid(gate)
        return passed * sigmoid * (1 + gate * (1 - sigmoid))

    return gated.gradients(grad_y, gate, up, functional.silu, slope)


def liger() -> Callable[..., Any]:
    """Liger's Triton kernels. They copy the halves of a packed input."""
    # Imported from its module, because the package may replace it by another backend.
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    return gated.overwriting(LigerSiLUMulFunction.apply)


op = Op(
    schema="swiglu(Tensor gate, Tensor? up) -> Tensor y",
    reference=reference,
    backward=Backward(
        "swiglu_backward(Tensor grad_y, Tensor gate, Tensor? up) "
        "-> (Tensor grad_gate, Tensor grad_up)",
        backward_reference,
    ),
    validate=partial(gated.validate, "swiglu"),
    cases=gated.cases,
    # exp, plus 1, one over it, times gate, times up.
    operations=lambda gate, up: 5 * gated.outputs(gate, up),
    sized=gated.sized,
    peers={"liger": liger},
    autocast="promote",
    module=lambda: opforge.nn.SwiGLU(),
    build=Build(by_dtype=["cuda"]),
)


def swiglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """``silu(gate) * up``. Without ``up``, the last dim of ``gate`` holds both halves."""
    y: Tensor = op(gate, up)
    return y
