# SPDX-License-Identifier: Apache-2.0
"""The norm modules of torch.nn, with an optional residual that is added first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import opforge
from opforge.ops.families.norms import wide_dtype


class LayerNorm(nn.LayerNorm):
    """:class:`torch.nn.LayerNorm` by :func:`opforge.layer_norm`, with equal arguments and state."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """The norm of ``x``; with a residual that of ``x + residual``, and this sum."""
        parameters = _flat(self.weight), _flat(self.bias)
        return _over_rows(
            lambda x, residual: opforge.layer_norm(x, *parameters, residual, eps=self.eps),
            self.normalized_shape,
            x,
            residual,
        )


class RMSNorm(nn.RMSNorm):
    """:class:`torch.nn.RMSNorm` by :func:`opforge.rms_norm`, with equal arguments and state.

    Args:
        offset: is added to the weight, which starts at ``1 - offset``. Gemma's weights need 1.0.
    """

    def __init__(
        self,
        normalized_shape: int | list[int] | torch.Size,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        offset: float = 0.0,
    ) -> None:
        self.offset = float(offset)  # set before torch's __init__, which makes the weight
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)

    def reset_parameters(self) -> None:
        """Set the weight to ``1 - offset``, as at construction."""
        if self.weight is not None:
            nn.init.constant_(self.weight, 1 - self.offset)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """The norm of ``x``; with a residual that of ``x + residual``, and this sum."""
        weight = _flat(self.weight)
        # torch's default, also for 16-bit tensors, which are computed in float32.
        eps = torch.finfo(wide_dtype(x)).eps if self.eps is None else self.eps
        return _over_rows(
            lambda x, residual: opforge.rms_norm(x, weight, residual, eps=eps, offset=self.offset),
            self.normalized_shape,
            x,
            residual,
        )

    def extra_repr(self) -> str:
        """The arguments that repr() shows."""
        return super().extra_repr() + (f", offset={self.offset:g}" if self.offset else "")


class GroupNorm(nn.GroupNorm):
    """:class:`torch.nn.GroupNorm` by :func:`opforge.group_norm`, with equal arguments and state.

    Args:
        bias: False leaves out only the bias, as in :class:`torch.nn.LayerNorm`.
        activation: ``"silu"`` applies silu to the result in the same pass.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        activation: str | None = None,
    ) -> None:
        if activation not in ("silu", None):
            raise ValueError(f'opforge.nn: activation must be "silu" or None, got {activation!r}')
        super().__init__(num_groups, num_channels, eps, affine, device, dtype)
        if not bias:
            self.register_parameter("bias", None)
        self.activation = activation

    def reset_parameters(self) -> None:
        """Set the weights to 1 and the biases to 0, as at construction."""
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The norm of ``x``, whose dim 1 has ``num_channels`` channels."""
        y: Tensor = opforge.group_norm(
            x, self.num_groups, self.weight, self.bias, eps=self.eps, activation=self.activation
        )
        return y

    def extra_repr(self) -> str:
        """The arguments that repr() shows."""
        return super().extra_repr() + (f", activation={self.activation!r}" * bool(self.activation))


def _over_rows(
    norm: Callable[..., Any], shape: tuple[int, ...], x: Tensor, residual: Tensor | None
) -> Any:
    """Call ``norm`` with the normalised dims flattened. The results get the shape of ``x``."""
    for name, t in (("x", x), ("residual", residual)):
        if t is not None and t.shape[-len(shape) :] != shape:
            raise ValueError(
                f"opforge.nn: {name} must end in the dims that the norm was made for, "
                f"{tuple(shape)}; its shape is {tuple(t.shape)}"
            )
    if len(shape) == 1:
        return norm(x, residual)
    if residual is None:
        return norm(x.flatten(-len(shape)), None).reshape(x.shape)
    both = norm(x.flatten(-len(shape)), residual.flatten(-len(shape)))
    return tuple(r.reshape(x.shape) for r in both)


def _flat(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.reshape(-1)
