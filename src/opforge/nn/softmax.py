# SPDX-License-Identifier: Apache-2.0
"""The softmax modules of torch.nn, with the scale and the masks of attention."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

import opforge


class _Softmax(nn.Module):
    def __init__(self, dim: int = -1, *, scale: float = 1.0, causal: bool = False) -> None:
        super().__init__()
        if not isinstance(dim, int):
            raise TypeError(
                f"opforge.nn.{type(self).__name__}: dim must be an int, got {dim!r}; the "
                "dim that torch chooses for None depends on the rank of the input, so name it"
            )
        self.dim, self.scale, self.causal = dim, float(scale), causal

    def _run(self, function: Callable[..., Tensor], x: Tensor, mask: Tensor | None) -> Tensor:
        if not -x.dim() <= self.dim < x.dim():
            raise IndexError(
                f"opforge.nn.{type(self).__name__}: dim {self.dim} is out of range for x of shape "
                f"{tuple(x.shape)}"
            )
        if self.dim % x.dim() == x.dim() - 1:
            return function(x, mask, scale=self.scale, causal=self.causal)
        if mask is not None or self.causal:
            raise ValueError(
                f"opforge.nn.{type(self).__name__}: mask and causal need dim to be the last one, "
                f"but dim is {self.dim} and x has shape {tuple(x.shape)}"
            )
        return function(x.movedim(self.dim, -1), scale=self.scale).movedim(-1, self.dim)

    def extra_repr(self) -> str:
        """The arguments that repr() shows."""
        scale = f", scale={self.scale:g}" if self.scale != 1 else ""
        return f"dim={self.dim}{scale}" + (", causal=True" if self.causal else "")


class Softmax(_Softmax):
    """:class:`torch.nn.Softmax` by :func:`opforge.softmax`. Dims other than the last need copies.

    Args:
        dim: the dim that sums to 1.
        scale: a factor of the input.
        causal: the last two dims are queries and keys; no query sees a later key.
    """

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The softmax of ``x * scale + mask``."""
        return self._run(opforge.softmax, x, mask)


class LogSoftmax(_Softmax):
    """:class:`torch.nn.LogSoftmax` by :func:`opforge.log_softmax`, like :class:`Softmax`."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The logarithm of the softmax of ``x * scale + mask``."""
        return self._run(opforge.log_softmax, x, mask)
