# SPDX-License-Identifier: Apache-2.0
"""The shapes of an example call, from ``--example "x: 4096x1024 bf16, w: 1024"`` or by the names.

Sizes only tell which dims of which tensors are the same: the op takes any sizes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import torch

from opforge.errors import NewError
from opforge.formula.graph import COLUMNS
from opforge.formula.source import Parameter, Source
from opforge.terminal.words import did_you_mean

_DTYPES = ("f32", "float32", "f16", "float16", "half", "bf16", "bfloat16", "f64", "float64")
# Arguments that are vectors along the columns where no example says otherwise.
_VECTORS = re.compile(r"(w|b|weight|bias|gamma|beta|gain)s?\d?\Z|.*_(weight|bias|gamma|beta)\Z")
_FRAME = "4096x1024"
_NUMBERS = {"eps": 1e-6, "epsilon": 1e-6, "lr": 1e-3, "p": 0.25, "beta1": 0.9, "beta2": 0.999}


@dataclass
class Example:
    """The arguments of a call: the axes of each tensor's dims, a value of each number."""

    dims: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)  # int and bool: part of the formula
    frame: tuple[str, ...] = ()
    assumed: list[str] = field(default_factory=list)  # what no example said, in words


def resolve(source: Source, text: str | None) -> Example:
    """The example of a function. Raises NewError for what does not fit its parameters."""
    given = _parse(source, text or "")
    example = Example()
    shapes: dict[str, tuple[int, ...]] = {}
    for parameter in source.parameters:
        name, value = parameter.name, given.get(parameter.name)
        kind = parameter.kind or (
            "Tensor" if value is None or isinstance(value, tuple) else "float"
        )
        if kind == "Tensor":
            if value is not None and not isinstance(value, tuple):
                raise NewError(
                    f"--example: {name} is a Tensor; give its sizes, as in {name}: 4096x1024"
                )
            shapes[name] = value if value is not None else _guess(name, example)
        elif kind == "float":
            example.numbers[name] = _number(parameter, value)
        else:
            example.fixed[name] = _fixed(source, parameter, value)
    if not shapes:
        raise source.error(f"{source.name} takes no tensor; an op needs at least one")
    _name_axes(shapes, example)
    return example


def _parse(source: Source, text: str) -> dict[str, Any]:
    given: dict[str, Any] = {}
    names = [p.name for p in source.parameters]
    for part in (p.strip() for p in text.split(",") if p.strip()):
        name, colon, what = (p.strip() for p in part.partition(":"))
        if not colon:
            raise NewError(f"--example: {part!r} is not NAME: SIZES, as in 'x: 4096x1024, w: 1024'")
        if name not in names:
            raise NewError(
                f"--example: {source.name} has no parameter {name!r}; it has {', '.join(names)}"
                f"{did_you_mean(name, names)}"
            )
        sizes, *dtype = what.split() or [""]
        if len(dtype) > 1 or (dtype and dtype[0] not in _DTYPES):
            raise NewError(
                f"--example: {part!r}: kernels are for float32, float16, bfloat16 and float64; "
                f"{dtype[-1]} is not supported"
            )
        given[name] = _value(part, sizes)
    return given


def _value(part: str, text: str) -> Any:
    """Sizes, a number or a bool; one whole number may be both a size and a number."""
    if re.fullmatch(r"\d+(x\d+)*", text):
        return tuple(int(n) for n in text.split("x"))
    if text in ("True", "False"):
        return text == "True"
    if text == "()":
        return ()
    try:
        return float(text)
    except ValueError:
        raise NewError(
            f"--example: {part!r} has neither sizes such as 4096x1024 nor a number"
        ) from None


def of_call(source: Source, given: dict[str, Any]) -> Example:
    """The example that the arguments of a call are."""
    example = Example()
    shapes: dict[str, tuple[int, ...]] = {}
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            shapes[name] = tuple(value.shape)
        elif isinstance(value, float):
            example.numbers[name] = value
        elif isinstance(value, (bool, int)):
            example.fixed[name] = value
        else:
            raise source.error(
                f"{name} is a {type(value).__name__}; a formula takes Tensor, float, int and bool"
            )
    if not shapes:
        raise source.error(f"{source.name} takes no tensor; an op needs at least one")
    _name_axes(shapes, example)
    return example


def _guess(name: str, example: Example) -> tuple[int, ...]:
    shape = "1024" if _VECTORS.match(name) else _FRAME
    example.assumed.append(f"{name}: {shape}")
    return tuple(int(n) for n in shape.split("x"))


def _number(parameter: Parameter, value: Any) -> float:
    if isinstance(value, tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, tuple):
        raise NewError(f"--example: {parameter.name} is a float; give a number")
    if value is not None:
        return float(value)
    if parameter.has_default and isinstance(parameter.default, (int, float)):
        return float(parameter.default)
    return _NUMBERS.get(parameter.name, 0.5)


def _fixed(source: Source, parameter: Parameter, value: Any) -> Any:
    if isinstance(value, tuple) and len(value) == 1:
        value = value[0]
    if value is not None:
        return bool(value) if parameter.kind == "bool" else int(value)
    if parameter.has_default:
        return parameter.default
    raise source.error(
        f"{parameter.name} is {'an int' if parameter.kind == 'int' else 'a bool'}, which the "
        f"kernels are written for; give its value, as in --example '{parameter.name}: 1', or a "
        "default"
    )


def _name_axes(shapes: dict[str, tuple[int, ...]], example: Example) -> None:
    """Equal sizes at one place from the right are one axis; else equal sizes anywhere are."""
    largest = max(shapes.values(), key=lambda s: (len(s), math.prod(s)))
    rank = len(largest)
    sizes = list(largest)
    for shape in shapes.values():  # where the largest has a 1, another may have more
        for place, n in enumerate(shape, rank - len(shape)):
            sizes[place] = n if sizes[place] == 1 else sizes[place]
    names = [COLUMNS if d == rank - 1 else f"r{rank - 2 - d}" for d in range(rank)]
    example.frame = tuple(names)
    for name, shape in shapes.items():
        dims: list[str | None] = []
        for i, n in enumerate(shape):
            place = i + rank - len(shape)
            if n == 1 and not (len(shape) == rank and sizes[place] == 1):
                dims.append(None)
            elif n == sizes[place]:
                dims.append(names[place])
            elif n in sizes:
                dims.append(names[sizes.index(n)])
            else:
                raise NewError(
                    f"--example: size {n} of {name} is none of the sizes of the largest tensor, "
                    f"{'x'.join(map(str, sizes))}"
                )
        example.dims[name] = tuple(dims)
