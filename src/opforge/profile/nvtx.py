# SPDX-License-Identifier: Apache-2.0
"""``opforge.nvtx()``: names every call of an op in the timelines of Nsight Systems and PyTorch."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from opforge.op import Op
from opforge.registration.gradient import Gradient

_lock = threading.Lock()
_depth = 0
_call = Op.__call__
_backward = Gradient.backward


@contextlib.contextmanager
def nvtx() -> Iterator[None]:
    """Within this context each call of an op is a range ``opforge.<op>``, in every thread.

    Its backward is ``opforge.<op>_backward``, also where the forward ran before. Ranges go to the
    PyTorch profiler and, where torch has CUDA, to NVTX. Code under ``torch.compile`` has none.
    """
    # Both classes are changed while the context is active and at no other time, so that the hot
    # path need not ask. Ops that are loaded meanwhile are of the same classes.
    global _depth
    with _lock:
        _depth += 1
        _replace(_named(_call), _named(_backward))
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _replace(_call, _backward)


def _replace(call: Callable[..., Any], backward: Callable[..., Any]) -> None:
    setattr(Op, "__call__", call)  # noqa: B010 (mypy takes no assignment to a method)
    setattr(Gradient, "backward", backward)  # noqa: B010


def _named(method: Callable[..., Any]) -> Callable[..., Any]:
    """``method`` of something with a name, inside a range of that name."""

    @functools.wraps(method)
    def inside(self: Any, *args: Any) -> Any:
        if torch.compiler.is_compiling():
            return method(self, *args)
        with _span(f"opforge.{self.name}"):
            return method(self, *args)

    return inside


@contextlib.contextmanager
def _span(name: str) -> Iterator[None]:
    # torch.profiler.record_function would be an operator in the graph of whoever traces this call.
    with torch._C._profiler._RecordFunctionFast(name):
        if torch.version.cuda is None:
            yield
            return
        torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()
