# SPDX-License-Identifier: Apache-2.0
"""Stands in for ``opforge.build.load`` in an exported kernel, whose libraries are ready.

An export is a folder with ``metadata.json``, the libraries in ``lib/``, and in ``_opforge/`` the
part of opforge that runs. There, this file is ``_opforge/build/load.py``.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import opforge
from opforge.build.cpu import cpu_flags
from opforge.errors import KernelUnavailable
from opforge.op import Op
from opforge.registration.register import register

_EXPORT = Path(__file__).parents[2]
_reasons: dict[tuple[str, str], str] = {}  # (op, target) -> why its library is not loaded


@functools.cache
def record(name: str) -> Op:
    """The record of an exported op, registered with torch under the export's own namespace."""
    module = importlib.import_module(f"{opforge.__name__}.ops.{name}.op")
    op = next(value for value in vars(module).values() if isinstance(value, Op))
    op.namespace = json.loads((_EXPORT / "metadata.json").read_text())["id"]
    register(op)
    for manifest in sorted((_EXPORT / "lib").glob("*.json")):
        facts = json.loads(manifest.read_text())
        if facts["op"] == name and not facts["part"]:  # it finds the other parts beside it
            _load(manifest.with_name(facts["library"]), facts)
    setattr(opforge, name, getattr(module, name, op))  # as other ops call it
    return op


def function(name: str) -> Callable[..., Any]:
    """The public function of an exported op."""
    record(name)
    found: Callable[..., Any] = getattr(opforge, name)
    return found


def ensure(op: Op, function: str, device_type: str, dtype: Any = None) -> bool:
    """Called for a device for which torch has no kernel. False: the reference serves.

    A CUDA tensor is never served by the reference: that raises.
    """
    known = op.name, device_type
    reason = _reasons.get(known, f"{_EXPORT} has no {device_type} library of it")
    if device_type == "cuda":
        raise KernelUnavailable(f"opforge.{op.name} has no CUDA kernel for this tensor: {reason}")
    if known in _reasons:
        _warn_once(f"opforge.{op.name} runs through its PyTorch reference on the CPU: {reason}")
    return False


def _load(library: Path, facts: dict[str, Any]) -> None:
    known = facts["op"], facts["target"]
    if missing := set(facts["cpu_flags"]) - set(cpu_flags().split()):
        lacking = ", ".join(sorted(missing))
        _reasons[known] = f"{library} needs CPU instructions that this CPU lacks: {lacking}"
        return
    try:
        # torch.ops.load_library would follow links. Then a library in the Hub's cache, where files
        # are links, does not find the others beside it.
        ctypes.CDLL(str(library))
    except OSError as error:
        _reasons[known] = f"{library} cannot be loaded: {error}"


@functools.cache
def _warn_once(text: str) -> None:
    warnings.warn(text, stacklevel=2)
