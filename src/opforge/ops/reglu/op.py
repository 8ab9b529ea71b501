# SPDX-License-Identifier: Apache-2.0
"""reglu: y = relu(gate) * up, of two tensors or of the halves of one, in one pass each way."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

import opforge
from opforge.op import Backward, Op
from opforge.ops.families import gated


def reference(gate: Tensor, up: Tensor | None) -> Tensor:
    """The formula as it stands."""
    gate, up = gated.halves(gate, up)
    return torch.relu(gate) * up


def backward_reference(grad_y: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """Where gate is positive (or NaN) the gradient passes."""

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
)


def reglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """``relu(gate) * up``; without ``up``, of the two halves of the last dim of ``gate``."""
    y: Tensor = op(gate, up)
    return y
