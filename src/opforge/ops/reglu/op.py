# SPDX-License-Identifier: Apache-2.0
"""reglu: y = relu(gate) * up, from two tensors or the two halves of one."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

import opforge
from opforge.op import Backward, Build, Op
from opforge.ops.families import gated


def reference(gate: Tensor, up: Tensor | None) -> Tensor:
    """The formula."""
    gate, up = gated.halves(gate, up)
    return torch.relu(gate) * up


def backward_reference(grad_y: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradient passes where gate is positive (or NaN)."""

    def slope(passed: Tensor, gate: Tensor) -> Tensor:
        return passed.masked_fill(gate <= 0, 0)

    return gated.gradients(grad_y, gate, up, torch.relu, slope)


op = Op(
    schema="reglu(Tensor gate, Tensor? up) -> Tensor y",
    reference=reference,
    backward=Backward(
        "reglu_backward(Tensor grad_y, Tensor gate, Tensor? up) "
        "-> (Tensor grad_gate, Tensor grad_up)",
        backward_reference,
    ),
    validate=partial(gated.validate, "reglu"),
    cases=gated.cases,
    operations=lambda gate, up: 2 * gated.outputs(gate, up),
    sized=gated.sized,
    autocast="promote",
    module=lambda: opforge.nn.ReGLU(),
    build=Build(by_dtype=["cuda"]),
)


def reglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """``relu(gate) * up``. Without ``up``, the last dim of ``gate`` holds both halves."""
    y: Tensor = op(gate, up)
    return y
