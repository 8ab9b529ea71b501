# SPDX-License-Identifier: Apache-2.0
"""Guard pages: puts CPU tensors next to inaccessible pages, so that an access beyond one faults.

Inside :func:`pages`, every new tensor gets its own mapping and lies at its end (or start).
:func:`against_page` moves an argument of a call into such a mapping and makes it read-only. The
simulator reports faults of simulated kernels. Any other fault ends the process, with a message on
standard error (see ``fault.cpp``).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Literal

import torch

from opforge import settings
from opforge.build import cache, compile
from opforge.build.plan import plan_guard
from opforge.errors import KernelUnavailable

Side = Literal["end", "start"]
SIDES: tuple[Side, ...] = ("end", "start")
SAYS = "opforge guard: "  # the report of a fault begins with this
_NUMBERS = {"": 0, "end": 1, "start": 2}  # guard::Side
_ALIGNMENT = 64  # guard::kAlignment
_ROOM = 4096  # bytes for the description of a fault
_active: list[Side] = []  # nested contexts, innermost last


class OutOfBounds(AssertionError):
    """Something was written next to a tensor, on a side without a page."""


@functools.cache
def library() -> ctypes.CDLL:
    """The C++ library, built and loaded on first use."""
    planned = plan_guard()
    built = cache.lookup(planned.entry)
    if built is None and not settings.jit_enabled():
        raise KernelUnavailable("the library for guard pages is not built, and OPFORGE_JIT=0")
    built = built or compile.build([planned])[0]
    # Global, because the simulator looks for opforge_guard_describe.
    found = ctypes.CDLL(str(built.path), mode=ctypes.RTLD_GLOBAL)
    found.opforge_guard_name.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.c_char_p,
        ctypes.c_bool,
    ]
    found.opforge_guard_take.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return found


@contextlib.contextmanager
def _allocating(side: Side) -> Iterator[None]:
    before = _active[-1] if _active else ""
    library().opforge_guard_set(_NUMBERS[side])
    _active.append(side)
    try:
        yield
    finally:
        _active.pop()
        library().opforge_guard_set(_NUMBERS[before])


@contextlib.contextmanager
def pages(side: Side, keep_saved: bool = True) -> Iterator[None]:
    """A context that puts new tensors next to a page. By default, saved tensors are read-only.

    Raises :class:`OutOfBounds` for writes next to them that did not fault: up to 63 bytes past an
    end that is not a multiple of torch's alignment.
    """
    protect = _protect_saved if keep_saved else _same
    with _allocating(side), torch.autograd.graph.saved_tensors_hooks(protect, _same):
        try:
            yield
        except BaseException:
            _take()  # discard reports, so that the next call does not get them
            raise
    if found := _take():
        raise OutOfBounds(found)


def _take() -> str:
    text = ctypes.create_string_buffer(_ROOM)
    library().opforge_guard_take(text, _ROOM)
    return text.value.decode().strip()


def _protect_saved(t: torch.Tensor) -> torch.Tensor:
    if t.device.type == "cpu" and t.numel():
        _name(t, "a tensor saved for the backward", read_only=True)
    return t


def _name(t: torch.Tensor, name: str, read_only: bool) -> None:
    size = t.element_size()
    library().opforge_guard_name(t.data_ptr(), _span(t) * size, size, name.encode(), read_only)


def _span(t: torch.Tensor) -> int:
    """The number of elements from the first to the last one in memory."""
    return 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))


def _same(t: torch.Tensor) -> torch.Tensor:
    return t


def against_page(t: torch.Tensor, side: Side, name: str, writable: bool = False) -> torch.Tensor:
    """The same values and strides in memory that ends or begins exactly at a page.

    It is read-only unless ``writable`` is set. Reports of faults use ``name``.
    """
    if t.numel() == 0:
        return t.detach()
    span = _span(t)
    unit = _ALIGNMENT // t.element_size()
    with _allocating(side):
        # A length that is a multiple of the alignment leaves no gap at the end.
        base = torch.empty(span if side == "start" else -(-span // unit) * unit, dtype=t.dtype)
    offset = base.numel() - span
    # The gaps between its elements are copied as well, so stride 0 needs no special care.
    base[offset:] = t.detach().as_strided((span,), (1,))
    moved = base.as_strided(t.shape, t.stride(), offset)
    _name(moved, name, read_only=not writable)
    return moved


def active_side() -> Side:
    """The side of the innermost :func:`pages`."""
    return _active[-1]
