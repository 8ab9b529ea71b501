# SPDX-License-Identifier: Apache-2.0
"""Arguments of an op, as values and as Python source."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch

from opforge import discover
from opforge.bench import shapes
from opforge.op import Make, Op
from opforge.registration.schema import Arg

_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "int[]": (list, tuple),
}


def sample(op: Op) -> tuple[Any, ...]:
    """Arguments of a moderate size: those of a benchmark, else the largest case of the record."""
    try:
        found = shapes.arguments(op, Make(), shapes.default(op, "cuda")[0])
    except shapes.ShapeError:
        return max(op.iter_cases(Make()), key=_elements)
    return next(iter(found.values()))


def _elements(case: tuple[Any, ...]) -> int:
    return sum(a.numel() for a in case if isinstance(a, torch.Tensor))


def default_of(op: Op, argument: Arg) -> Any:
    """A value for an argument that is no required tensor.

    It is the default of the op's public function, None, or that of a benchmark.
    """
    public = inspect.signature(discover.function_of(op)).parameters.get(argument.name)
    optional = argument.type.endswith("?")
    if public is not None and public.default is not public.empty:
        kinds = _KINDS.get(argument.type.rstrip("?"), ())
        fits = isinstance(public.default, kinds) or (optional and public.default is None)
        if fits:
            return public.default
    if optional:
        return None
    return sample(op)[op.forward.args.index(argument)]


def literal(value: Any) -> str:
    """A number, a list or None as Python source."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(list(value) if isinstance(value, tuple) else value)


def drawn(tensor: torch.Tensor) -> str:
    """Source that makes a tensor of the same shape and kind."""
    shape = ", ".join(map(str, tensor.shape)) or "()"
    if tensor.dtype.is_floating_point:
        return f"torch.randn({shape})"
    if tensor.dtype == torch.bool:
        return f"torch.rand({shape}) < 0.5"
    low, high = (int(f()) for f in (tensor.min, tensor.max)) if tensor.numel() else (0, 0)
    return f"torch.randint({low}, {high + 1}, ({shape},), dtype={tensor.dtype})"
