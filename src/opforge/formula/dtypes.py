# SPDX-License-Identifier: Apache-2.0
"""The dtypes that a formula takes: those that its results have as well."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from opforge.formula.example import Example
from opforge.formula.source import Source
from opforge.op import FLOATS, as_tuple


class _Narrows(TorchDispatchMode):
    """Notes whether a computation in float64 goes through a narrower type."""

    found = False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for value in as_tuple(result):
            if isinstance(value, torch.Tensor) and value.dtype in FLOATS[:3]:
                self.found = True
        return result


def supported(source: Source, example: Example) -> list[str]:
    """The names of the dtypes, or nothing for all four."""
    kept = [d for d in FLOATS if _keeps(source, example, d)]
    return [] if len(kept) == len(FLOATS) else [str(d).removeprefix("torch.") for d in kept]


def _keeps(source: Source, example: Example, dtype: torch.dtype) -> bool:
    sizes = dict(zip(example.frame, range(2, 10), strict=False))
    given: dict[str, Any] = {**example.numbers, **example.fixed}
    for name, dims in example.dims.items():
        shape = [1 if d is None else sizes[d] for d in dims]
        given[name] = torch.empty(shape, dtype=dtype, device="meta")
    arguments = [given[p.name] for p in source.parameters]
    watch = _Narrows()
    try:
        with watch:
            results = as_tuple(source.function(*arguments))
    except Exception:  # the user's own code raised it, for this dtype
        return False
    if dtype == torch.float64 and watch.found:
        return False
    return all(isinstance(r, torch.Tensor) and r.dtype == dtype for r in results)
