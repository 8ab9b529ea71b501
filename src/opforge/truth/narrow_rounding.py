# SPDX-License-Identifier: Apache-2.0
"""Random roundings of a reference's 16-bit intermediate results, to measure their effect."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from opforge.truth.rounding import EXACT, Mode, name_of

_ODD = -0x61C8864680B583EB  # 2^64 divided by the golden ratio: a factor that spreads bits


class NarrowRounding(Mode):
    """A mode that rounds every 16-bit result up or down at random, the nearer one more often.

    The reference runs in the dtypes of a case. If it rounds intermediate results to 16 bits, an
    implementation may do that as well, at the same points, at others, or not at all.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)
        # Address -> the rounded result (kept alive, so that it keeps its address), its exact value.
        self._exact: dict[int, tuple[Tensor, Tensor]] = {}

    def unrounded(self, result: Tensor | None) -> Tensor | None:
        """A result before its own rounding, which is always allowed."""
        if result is None or result.data_ptr() not in self._exact:
            return result
        rounded, exact = self._exact[result.data_ptr()]
        if rounded.shape == result.shape and rounded.stride() == result.stride():
            return exact
        same = rounded.numel() == result.numel() and rounded.is_contiguous()
        return exact.reshape(result.shape) if same and result.is_contiguous() else result

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        if func.is_view or (name in EXACT and name != "_to_copy"):
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            result = func(*args, **kwargs)
            if _is_narrow(result):
                exact = result.double()
                result.copy_(self._rounded(exact, result.dtype))
                self._exact[result.data_ptr()] = result, exact
            return result
        real = func(*args, **kwargs)
        several = isinstance(real, (tuple, list))
        results = list(real) if several else [real]
        if not any(_is_narrow(r) for r in results):
            return real
        if name == "_to_copy":  # which may also move to another device
            wide = args[0].double().to(real.device)
        else:
            wide = func(*(a.double() if _is_inexact(a) else a for a in args), **kwargs)
        for i, (r, e) in enumerate(zip(results, wide if several else [wide], strict=True)):
            if _is_narrow(r):
                results[i] = self._rounded(e, r.dtype)
                self._exact[results[i].data_ptr()] = results[i], e
        return type(real)(results) if several else results[0]

    def _rounded(self, exact: Tensor, dtype: torch.dtype) -> Tensor:
        info = torch.finfo(dtype)
        _, exponent = torch.frexp(exact.abs().clamp(min=info.smallest_normal))
        spacing = torch.ldexp(torch.full_like(exact, info.eps / 2), exponent)
        return (exact + self._noise(exact) * spacing).to(dtype)

    def _noise(self, exact: Tensor) -> Tensor:
        """A number from -1/2 to 1/2 for each value, from a hash of its bits.

        Equal values are rounded equally, so that their errors add up.
        """
        mixed = exact.double().view(torch.int64) ^ self._random.getrandbits(63)
        for _ in range(2):
            mixed = (mixed ^ (mixed >> 32)) * _ODD
        return (mixed >> 11).double() * 2.0**-53


def _is_inexact(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _is_narrow(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
