# SPDX-License-Identifier: Apache-2.0
"""Gated linear units and residual sums of transformer layers, without their matrix products."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def silu_gate(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def gelu_gate(gate: Tensor, up: Tensor) -> Tensor:
    return F.gelu(gate) * up


def sigmoid_gate(x: Tensor, gate: Tensor, gate_bias: Tensor) -> Tensor:
    return x * torch.sigmoid(gate + gate_bias)


def highway(x: Tensor, h: Tensor, gate: Tensor) -> Tensor:
    t = torch.sigmoid(gate)
    return t * h + (1 - t) * x


def layer_scale(x: Tensor, branch: Tensor, gamma: Tensor) -> Tensor:
    return x + gamma * branch


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale) + shift


def gru_cell(h: Tensor, reset: Tensor, update: Tensor, fresh: Tensor) -> Tensor:
    r = torch.sigmoid(reset)
    z = torch.sigmoid(update)
    n = torch.tanh(fresh + r * h)
    return (1 - z) * n + z * h


def lstm_cell(
    cell: Tensor, forget: Tensor, gate: Tensor, fresh: Tensor, out: Tensor
) -> tuple[Tensor, Tensor]:
    c = torch.sigmoid(forget) * cell + torch.sigmoid(gate) * torch.tanh(fresh)
    h = torch.sigmoid(out) * torch.tanh(c)
    return h, c
