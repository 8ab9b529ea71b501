# SPDX-License-Identifier: Apache-2.0
"""Argument checks derived from a record, and the translation of errors raised in kernels.

Nothing here is on the hot path. The checks run with the fake kernel and with the reference. They
also run after a kernel has rejected its arguments, to explain why.
"""

from __future__ import annotations

from typing import Any

import torch

from opforge.op import Op
from opforge.registration.schema import Arg

# In host.h, the message of a failed allocation starts with this text.
ALLOCATION_FAILED = "opforge: out of memory"


def can_look_at(values: torch.Tensor) -> bool:
    """Whether a tensor's values can be read: not while compiling, tracing or under functorch."""
    return (
        not torch.compiler.is_compiling()
        and type(values) is torch.Tensor
        and values.numel() > 0
        and not torch._C._are_functorch_transforms_active()
    )


def check_arguments(op: Op, args: tuple[Any, ...]) -> None:
    """Raise TypeError or ValueError for arguments that ``op`` does not support."""
    check_kinds(op, args)
    tensors = {}
    for arg, value in zip(op.forward.args, args, strict=True):
        if isinstance(value, torch.Tensor):
            _check_tensor(op, arg.name, value)
            tensors[arg.name] = value
    _check_one_device(op, tensors)
    if op.validate is not None:
        op.validate(*args)


def check_kinds(op: Op, args: tuple[Any, ...]) -> None:
    """Raise TypeError if the number or kinds of arguments do not match the schema."""
    expected = op.forward.args
    if len(args) != len(expected):
        names = ", ".join(a.name for a in expected)
        missing = ", ".join(a.name for a in expected[len(args) :])
        raise TypeError(
            f"opforge.{op.name} takes {len(expected)} arguments ({names}), got {len(args)}"
            + (f"; missing: {missing}" if missing else "")
        )
    for arg, value in zip(expected, args, strict=True):
        _check_kind(op, arg, value)


def _check_kind(op: Op, arg: Arg, value: Any) -> None:
    wanted: tuple[type, ...] = {
        "Tensor": (torch.Tensor,),
        "float": (float, int, torch.SymFloat, torch.SymInt),
        "int": (int, torch.SymInt),
        "bool": (bool,),
    }.get(arg.type.rstrip("?"), (object,))
    if value is None and arg.type.endswith("?"):
        return
    if not isinstance(value, wanted):
        what = {"Tensor": "a torch.Tensor", "float": "a number"}.get(
            arg.type, f"of type {arg.type}"
        )
        raise TypeError(f"opforge.{op.name}: {arg.name} must be {what}, got {type(value).__name__}")


def _check_tensor(op: Op, name: str, tensor: torch.Tensor) -> None:
    if tensor.layout != torch.strided:
        raise TypeError(
            f"opforge.{op.name}: {name} has layout {tensor.layout}; "
            f"only dense tensors are supported, convert it with {name}.to_dense()"
        )
    allowed = op.allowed(name)
    if tensor.dtype not in allowed:
        names = ", ".join(str(d).removeprefix("torch.") for d in allowed)
        remedy = f"Convert it with {name}.to({allowed[0]})"
        if str(tensor.dtype).startswith("torch.float8"):
            remedy = (
                f"FP8 values need their scale: pass ({name}.float() * scale).to({allowed[0]}), or "
                "multiply them with opforge.scaled_linear"
            )
        raise TypeError(
            f"opforge.{op.name}: {name} has dtype {tensor.dtype}; supported: {names}. {remedy}"
        )


def _check_one_device(op: Op, tensors: dict[str, torch.Tensor]) -> None:
    if len({t.device for t in tensors.values()}) > 1:
        places = ", ".join(f"{name} on {t.device}" for name, t in tensors.items())
        raise ValueError(
            f"opforge.{op.name}: all tensors must be on one device, got {places}. "
            "Move them with .to(device)"
        )


def explain(op: Op, args: tuple[Any, ...], error: Exception) -> Exception:
    """The exception that a user should see in place of ``error``, which a call of ``op`` raised."""
    try:
        check_arguments(op, args)
    except (TypeError, ValueError) as reason:
        return reason
    if ALLOCATION_FAILED in str(error):
        return torch.OutOfMemoryError(f"opforge.{op.name}: {error}")
    return error
