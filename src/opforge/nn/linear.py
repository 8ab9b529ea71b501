# SPDX-License-Identifier: Apache-2.0
"""Linear layers with what follows them, and the blocks of two or three that transformers have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

import opforge
from opforge.ops.families import float8, products

# What others call the two layers of an MLP: torch.nn.Sequential with an activation between them,
# and vision transformers.
_OTHER_NAMES = {"0": "up", "2": "down", "fc1": "up", "fc2": "down"}

Scaling = Literal["row", "tensor"] | None


class Linear(nn.Linear):
    """:class:`torch.nn.Linear` by :func:`opforge.linear`, with equal arguments and state.

    Args:
        activation: is applied to the result: None, "relu", "gelu", "gelu_tanh", "silu" or
            "sigmoid".
        tf32: multiply float32 as TF32, see :func:`opforge.linear`.
        main_grad: each backward adds the gradient of the weight to the float32 tensor
            ``weight.main_grad``, as in Megatron, and leaves ``weight.grad`` alone. The first
            forward makes one of zeros if there is none. The optimizer has to read it, and to set it
            to zero. See :func:`opforge.linear`.
        fp8: multiply as FP8 with scales per "row" or per "tensor", see :func:`opforge.fp8_linear`.
            Parameters keep their dtype.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str | None = None,
        tf32: bool = False,
        main_grad: bool = False,
        fp8: Scaling = None,
    ) -> None:
        products.code_of("nn.Linear", activation)
        _check_fp8("nn.Linear", fp8, tf32, main_grad)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation, self.tf32, self.main_grad = activation, tf32, main_grad
        self.fp8 = fp8

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """``activation(linear(x)) + residual``."""
        arguments = x, self.weight, self.bias, self.activation, residual
        if self.fp8 is not None:
            return opforge.fp8_linear(*arguments, scaling=self.fp8)
        total = _main_grad(self.weight) if self.main_grad else None
        return opforge.linear(*arguments, tf32=self.tf32, main_grad=total)

    def extra_repr(self) -> str:
        """The arguments that repr() shows."""
        options = self.activation, None, self.tf32, self.fp8, self.main_grad
        return super().extra_repr() + _shown(*options)


class MLP(nn.Module):
    """``down(activation(up(x))) + residual`` by :func:`opforge.mlp`.

    It has the layers ``up`` and ``down``, each a :class:`torch.nn.Linear`. It also loads the state
    of ``nn.Sequential(Linear, activation, Linear)``, whose keys begin with ``0.`` and ``2.``, and
    of modules that call the layers ``fc1`` and ``fc2``.

    Args:
        features: of x.
        hidden: values that are activated.
        outputs: of the result; ``features`` if None.
        bias: whether the layers have one.
        activation: None, "relu", "gelu", "gelu_tanh", "silu" or "sigmoid".
        tf32: multiply float32 as TF32, see :func:`opforge.linear`.
        fp8: multiply as FP8 with scales per "row" or per "tensor", see :func:`opforge.fp8_linear`.
            Parameters keep their dtype.
        main_grad: backwards add to the ``main_grad`` of each weight, see :class:`Linear`.
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        outputs: int | None = None,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str | None = "gelu",
        tf32: bool = False,
        fp8: Scaling = None,
        main_grad: bool = False,
    ) -> None:
        products.code_of("nn.MLP", activation)
        _check_fp8("nn.MLP", fp8, tf32, main_grad)
        super().__init__()
        outputs = features if outputs is None else outputs
        self.up = nn.Linear(features, hidden, bias, device, dtype)
        self.down = nn.Linear(hidden, outputs, bias, device, dtype)
        self.activation, self.tf32 = activation, tf32
        self.fp8, self.main_grad = fp8, main_grad
        self.register_load_state_dict_pre_hook(_rename)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """The block's result for ``x``, plus the residual."""
        up, down = self.up, self.down
        return opforge.mlp(
            *(x, up.weight, down.weight, up.bias, down.bias),
            activation=self.activation,
            residual=residual,
            tf32=self.tf32,
            fp8=self.fp8,
            main_grad=_main_grads(up_weight=up, down_weight=down) if self.main_grad else None,
        )

    def extra_repr(self) -> str:
        """The arguments that repr() shows."""
        shown = _shown(self.activation, "gelu", self.tf32, self.fp8, self.main_grad)
        return shown.removeprefix(", ")


class GatedMLP(nn.Module):
    """``down_proj(activation(gate_proj(x)) * up_proj(x)) + residual`` by :func:`opforge.mlp`.

    It has the layers of Llama, each a :class:`torch.nn.Linear`: ``gate_proj``, ``up_proj`` and
    ``down_proj``. With ``packed``, ``gate_up_proj`` holds the first two, as in Phi-3: then one
    product makes each gradient of both. Either loads the state of the other.

    Args:
        features: of x.
        hidden: values that are gated.
        outputs: of the result; ``features`` if None.
        bias: whether the layers have one.
        activation: "silu" (SwiGLU), "gelu", "gelu_tanh" (GeGLU), "relu" (ReGLU), "sigmoid" (GLU),
            or None.
        packed: whether gate and up share a weight.
        tf32: multiply float32 as TF32, see :func:`opforge.linear`.
        fp8: multiply as FP8 with scales per "row" or per "tensor", see :func:`opforge.fp8_linear`.
            Parameters keep their dtype.
        main_grad: backwards add to the ``main_grad`` of each weight, see :class:`Linear`.
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        outputs: int | None = None,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str | None = "silu",
        packed: bool = False,
        tf32: bool = False,
        fp8: Scaling = None,
        main_grad: bool = False,
    ) -> None:
        products.code_of("nn.GatedMLP", activation)
        _check_fp8("nn.GatedMLP", fp8, tf32, main_grad)
        super().__init__()
        outputs = features if outputs is None else outputs
        if packed:
            self.gate_up_proj = nn.Linear(features, 2 * hidden, bias, device, dtype)
        else:
            self.gate_proj = nn.Linear(features, hidden, bias, device, dtype)
            self.up_proj = nn.Linear(features, hidden, bias, device, dtype)
        self.down_proj = nn.Linear(hidden, outputs, bias, device, dtype)
        self.activation, self.packed, self.tf32 = activation, packed, tf32
        self.fp8, self.main_grad = fp8, main_grad
        self.register_load_state_dict_pre_hook(_repack)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """The block's result for ``x``, plus the residual."""
        up = self.gate_up_proj if self.packed else self.up_proj
        gate: Any = {}
        layers = {"up_weight": up, "down_weight": self.down_proj}
        if not self.packed:
            gate = {"gate_weight": self.gate_proj.weight, "gate_bias": self.gate_proj.bias}
            layers["gate_weight"] = self.gate_proj
        return opforge.mlp(
            *(x, up.weight, self.down_proj.weight, up.bias, self.down_proj.bias),
            activation=self.activation,
            residual=residual,
            tf32=self.tf32,
            fp8=self.fp8,
            main_grad=_main_grads(**layers) if self.main_grad else None,
            **gate,
        )

    def extra_repr(self) -> str:
        """The arguments that repr() shows."""
        packed = ", packed=True" * self.packed
        shown = _shown(self.activation, "silu", self.tf32, self.fp8, self.main_grad)
        return (shown + packed).removeprefix(", ")


def _main_grad(weight: Any) -> Tensor | None:
    """``weight.main_grad``, zeros at first; None if there is no gradient to add."""
    if not (torch.is_grad_enabled() and weight.requires_grad):
        return None
    wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
    total: Tensor | None = getattr(weight, "main_grad", None)
    # The module may have been moved, or made double, since.
    if (
        total is None
        or total.device != weight.device
        or (total.dtype == torch.float64) != (wide == torch.float64)
    ):
        total = weight.main_grad = torch.zeros_like(weight, dtype=wide, requires_grad=False)
    return total


def _main_grads(**layers: nn.Linear) -> dict[str, Tensor]:
    """Those of the weights, by the name that :func:`opforge.mlp` has for each."""
    totals = {name: _main_grad(layer.weight) for name, layer in layers.items()}
    return {name: total for name, total in totals.items() if total is not None}


def _check_fp8(module: str, fp8: str | None, tf32: bool, main_grad: bool) -> None:
    if fp8 not in (None, *float8.SCALINGS):
        raise ValueError(f"opforge.{module}: fp8 must be None, 'row' or 'tensor', got {fp8!r}")
    for name, given in (("tf32", tf32), ("main_grad", main_grad)):
        if fp8 and given:
            raise ValueError(f"opforge.{module}: {name} and fp8 exclude each other; leave one out")


def _shown(
    activation: str | None, usual: str | None, tf32: bool, fp8: str | None, main_grad: bool
) -> str:
    shown = "" if activation == usual else f", activation={activation!r}"
    shown += ", tf32=True" * tf32 + (f", fp8={fp8!r}" if fp8 else "")
    return shown + ", main_grad=True" * main_grad


def _rename(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Give the layers of another MLP the names that they have here."""
    for old, new in _OTHER_NAMES.items():
        for key in _keys(prefix, old):
            if key in state:
                state[key.replace(f"{prefix}{old}.", f"{prefix}{new}.", 1)] = state.pop(key)


def _repack(module: GatedMLP, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Put the weights of gate and up together, or apart."""
    names = _keys(prefix, "gate_up_proj"), _keys(prefix, "gate_proj"), _keys(prefix, "up_proj")
    for both, gate, up in zip(*names, strict=True):
        if module.packed and gate in state and up in state:
            state[both] = torch.cat([state.pop(gate), state.pop(up)])
        elif not module.packed and both in state:
            state[gate], state[up] = state.pop(both).chunk(2)


def _keys(prefix: str, layer: str) -> Iterator[str]:
    return (f"{prefix}{layer}.{parameter}" for parameter in ("weight", "bias"))
