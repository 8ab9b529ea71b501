# SPDX-License-Identifier: Apache-2.0
"""Caches truths, because rows try the same values in several layouts and places."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from opforge.op import Op
from opforge.truth.expected import Case, Results, Truth

_SMALL = 1 << 18  # elements of a case; larger cases occur only once
_MOST = 1 << 23  # elements of all cached cases and results


class _Memory:
    """A cache of truths that drops the least recently used ones."""

    def __init__(self) -> None:
        self._found: OrderedDict[Any, tuple[Truth, int]] = OrderedDict()
        self._elements = 0

    def get(self, key: Any) -> Truth | None:
        if key not in self._found:
            return None
        self._found.move_to_end(key)
        return self._found[key][0]

    def put(self, key: Any, truth: Truth, elements: int) -> None:
        self._found[key] = truth, elements
        self._elements += elements
        while self._elements > _MOST:
            self._elements -= self._found.popitem(last=False)[1][1]


_memory = _Memory()


def truth(
    op: Op, what: str, case: Case, grads: Results, find: Callable[[Case, Results], Truth]
) -> Truth:
    """The result of ``find`` for these values, from the cache if possible.

    ``find`` gets copies, because a row may change a tensor afterwards.
    """
    elements = sum(t.numel() for t in (*case, *grads) if isinstance(t, torch.Tensor))
    if elements > _SMALL:
        return find(case, grads)
    key = (op, what, *map(_digest, case), "grads", *map(_digest, grads))
    found = _memory.get(key)
    if found is None:
        found = find(tuple(map(_copy, case)), tuple(map(_copy, grads)))
        _memory.put(key, found, elements + found.elements)
    return found


def _copy(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def _digest(value: Any) -> Any:
    """A key that is equal for equal values in any layout. 0.0 and -0.0 differ."""
    if not isinstance(value, torch.Tensor):
        return f"{type(value).__name__} {value!r}"
    plain = torch.empty(value.numel(), dtype=value.dtype)
    plain.view(value.shape).copy_(value.detach())
    data = hashlib.blake2b(plain.view(torch.uint8).numpy().tobytes(), digest_size=16).digest()
    return value.dtype, value.shape, value.device, value.requires_grad, data
