# SPDX-License-Identifier: Apache-2.0
"""Derives cases for a record without any: arguments by its schema that its reference accepts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from opforge.errors import RecordError
from opforge.op import Make, Op
from opforge.registration.arguments import check_arguments
from opforge.registration.schema import Arg

Shape = tuple[int, ...]
Choice = Any  # the shape of a tensor, or the value of another argument

# Shapes of the first tensor: a few ranks, odd and round sizes, and no two equal dims.
_SHAPES: tuple[Shape, ...] = ((33,), (5, 33), (64, 128), (3, 5, 16), (2, 3, 7, 8))
# Values that make sense as a scale, a limit, a probability or an epsilon; or as a dim or a count.
_VALUES: dict[str, tuple[Any, ...]] = {
    "float": (0.5, 2.0),
    "int": (1, 0, 2),
    "int[]": ([-1], [0]),
}
_MOST = 500  # the most combinations that are tried for one case


def make_all(op: Op, make: Make) -> Iterator[tuple[Any, ...]]:
    """Yield the derived cases with tensors from ``make``."""
    for choices in _accepted(op):
        yield _arguments(op, choices, make)


_known: dict[Op, list[tuple[Choice, ...]]] = {}


def _accepted(op: Op) -> list[tuple[Choice, ...]]:
    """The choices for each case. They are the same for every dtype and device, so found once."""
    if op not in _known:
        found: list[tuple[Choice, ...]] = []
        refusal: list[str] = []
        kinds = {a.type for a in op.forward.args}
        given = (True, False) if any(k.endswith("?") for k in kinds) else (True,)
        flags = (False, True) if kinds & {"bool", "bool?"} else (False,)
        for shape, present, flag in itertools.product(_SHAPES, given, flags):
            options = _options(op, shape, present, flag)
            for choices in itertools.islice(itertools.product(*options), _MOST):
                if choices not in found and _is_taken(op, choices, refusal):
                    found.append(choices)
                    break
        if not found:
            raise RecordError(
                f"the record of {op.name} has no cases, and its reference accepts none of those "
                f"derived from the schema (the last: {refusal[-1]}); give the record "
                "cases=<a generator of arguments>"
            )
        _known[op] = found
    return _known[op]


def _options(op: Op, shape: Shape, present: bool, flag: bool) -> list[tuple[Choice, ...]]:
    """Choices for each argument, the likeliest first: tensors of one shape, then rows, columns."""
    first = next(a for a in op.forward.args if a.type == "Tensor")
    others = tuple(dict.fromkeys([shape, shape[-1:], shape[:-1], shape[::-1]]))

    def of(arg: Arg) -> tuple[Choice, ...]:
        kind = arg.type.removesuffix("?")
        if arg is first:
            return (shape,)
        if arg.type.endswith("?") and not present:
            return (None,)
        if kind == "Tensor":
            return others
        return (flag,) if kind == "bool" else _VALUES[kind]

    return [of(arg) for arg in op.forward.args]


def _is_taken(op: Op, choices: tuple[Choice, ...], refusal: list[str]) -> bool:
    assert op.reference is not None
    case = _arguments(op, choices, Make(op.dtypes[0]))
    try:
        check_arguments(op, case)
        op.reference(*case)
    except Exception as error:  # a reference may raise anything
        refusal.append(f"{type(error).__name__}: {error}")
        return False
    return True


def _arguments(op: Op, choices: tuple[Choice, ...], make: Make) -> tuple[Any, ...]:
    pairs = zip(op.forward.args, choices, strict=True)
    return tuple(_tensor(op, a, c, make) if a.is_tensor and c is not None else c for a, c in pairs)


def _tensor(op: Op, arg: Arg, shape: Shape, make: Make) -> torch.Tensor:
    """A random tensor. If the argument takes integers (labels, masks), its values are 0 and 1."""
    tensor = make(*shape)
    dtypes = op.own_dtypes.get(arg.name)
    if dtypes is None or tensor.dtype in dtypes:
        return tensor
    if dtypes[0].is_floating_point:
        return tensor.to(dtypes[0])
    return (tensor > 0).to(dtypes[0])
