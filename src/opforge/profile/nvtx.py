# SPDX-License-Identifier: Apache-2.0
"""``opforge.nvtx()``: names the calls of ops in timelines of Nsight Systems and PyTorch."""

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
    """A context in which each call of an op is a range ``opforge.<op>``, in all threads.

    The backward is ``opforge.<op>_backward``, even if the forward ran before the context. Ranges go
    to the PyTorch profiler, and to NVTX if torch has CUDA. Code under ``torch.compile`` has none.
    """
    # Both classes are patched only while the context is active, so that the hot path needs no
    # check. Ops that are loaded meanwhile use the same classes.
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
    """Wrap ``method`` of an object with a name, so that it runs in a range of that name."""

    @functools.wraps(method)
    def inside(self: Any, *args: Any) -> Any:
        if torch.compiler.is_compiling():
            return method(self, *args)
        with _span(f"opforge.{self.name}"):
            return method(self, *args)

    return inside


@contextlib.contextmanager
def _span(name: str) -> Iterator[None]:
    # torch.profiler.record_function would become an operator in the graph when a call is traced.
    with torch._C._profiler._RecordFunctionFast(name):
        if torch.version.cuda is None:
            yield
            return
        torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()
