# SPDX-License-Identifier: Apache-2.0
"""Parses shapes, names sets of them, and makes an op's arguments for a shape."""

from __future__ import annotations

import inspect
import math
import re
from typing import Any, Protocol

import torch

from opforge.errors import OpforgeError
from opforge.op import Make, Op
from opforge.registration.arguments import check_arguments
from opforge.truth import inputs

Shape = tuple[int, ...]


class Makes(Protocol):
    """Something that makes tensors for a record: ``make(8, 33)``, on ``make.device``."""

    @property
    def device(self) -> str:
        """The device of the tensors."""

    def __call__(self, *shape: int) -> torch.Tensor:
        """A random tensor of this shape."""


# Round and odd shapes of at least 128 MB in bfloat16, as in transformers.
LARGE: list[Shape] = [
    (32768, 1024),
    (16384, 4096),
    (8192, 8192),
    (4096, 16384),
    (2048, 65536),
    (16384, 5120),
    (8192, 11008),
    (4096, 50257),
]
SMALL: list[Shape] = [(8, 64), (128, 1024), (512, 4096)]
ODD: list[Shape] = [(1, 131072), (131072, 96), (4095, 4097)]
NAMED = {"large": LARGE, "small": SMALL, "odd": ODD, "all": [*SMALL, *LARGE, *ODD]}
DEFAULT: dict[str, list[Shape]] = {
    "cuda": [(512, 4096), (8192, 8192), (4096, 50257)],
    "cpu": [(128, 1024), (1024, 4096), (1023, 4097)],
}
# Shapes for ops that are not benchmarked with rows and columns.
_DEFAULT_OF: dict[str, dict[int, list[Shape]]] = {
    "cuda": {1: [(1 << 26,)], 3: [(1024, 1024, 1024), (4096, 4096, 4096)]},
    "cpu": {1: [(1 << 22,)], 3: [(256, 256, 256), (512, 512, 512)]},
}
_MOST = 1 << 56  # elements: torch can count their bytes, and no memory is that large


class ShapeError(OpforgeError, ValueError):
    """A shape is invalid, in general or for this op."""


def parse(text: str) -> list[Shape]:
    """Parse ``8192x8192,4096x50257``, or names of sets: small, large, odd, all."""
    found: list[Shape] = []
    for part in text.split(","):
        word = part.strip().lower()
        if word in NAMED:
            found += NAMED[word]
        elif re.fullmatch(r"\d+([x×]\d+)*", word):
            shape = tuple(int(n) for n in re.split("[x×]", word))
            if not 0 < math.prod(shape) < _MOST:
                many = "too many elements" if all(shape) else "no element"
                raise ShapeError(f"there is nothing to time at {word}: it has {many}")
            found.append(shape)
        else:
            raise ShapeError(
                f"{part.strip()!r} is not a shape; write it as 8192x8192, several with commas, "
                f"or name a set: {', '.join(NAMED)}"
            )
    return list(dict.fromkeys(found))


def default(op: Op, device: str) -> list[Shape]:
    """The default shapes of an op."""
    if op.sized is not None:
        numbers = list(inspect.signature(op.sized).parameters.values())[1:]
        if all(p.kind is p.POSITIONAL_OR_KEYWORD for p in numbers):
            return _DEFAULT_OF[device].get(len(numbers), DEFAULT[device])
    return DEFAULT[device]


def sweep(device: str) -> list[Shape]:
    """Shapes of --sweep: more and more rows of one width, then wider rows, then odd widths."""
    top = 14 if device == "cuda" else 11
    rows = [(2**k, 4096) for k in range(4, top + 1)]
    columns = [(4096 if device == "cuda" else 512, 2**k) for k in range(6, top + 1)]
    odd = [(r, c + 1) for r, c in columns[2::2]]
    return list(dict.fromkeys([*rows, *columns, *odd]))


def arguments(op: Op, make: Makes, shape: Shape) -> dict[str, tuple[Any, ...]]:
    """Variant -> an op's arguments for a shape. A single variant has the name ""."""
    if op.sized is None:
        return {"": _resized(op, make, shape)}
    try:
        inspect.signature(op.sized).bind(make, *shape)
    except TypeError:
        wanted = len(inspect.signature(op.sized).parameters) - 1
        raise ShapeError(
            f"{op.name} is benchmarked at shapes of {wanted} numbers; got {_text(shape)}"
        ) from None
    try:
        found = op.sized(make, *shape)
    except (IndexError, ValueError) as error:
        raise ShapeError(f"{op.name} has no arguments of shape {_text(shape)}: {error}") from None
    named = dict(found) if isinstance(found, dict) else {"": found}
    for name, case in named.items():
        named[name] = tuple(a.to(make.device) if isinstance(a, torch.Tensor) else a for a in case)
        if len(case) != len(op.forward.args):
            raise ShapeError(
                f"sized() of {op.name} gives {len(case)} values, its schema has "
                f"{len(op.forward.args)} arguments"
            )
    return named


def check(op: Op, case: tuple[Any, ...], shape: Shape) -> None:
    """Raise ShapeError if the op rejects the arguments for this shape."""
    try:
        check_arguments(op, case)
    except (ValueError, TypeError) as error:
        raise ShapeError(f"{op.name} does not take shape {_text(shape)}: {error}") from None


def _resized(op: Op, make: Makes, shape: Shape) -> tuple[Any, ...]:
    """A case of the record with other sizes. Dims that were equal stay equal."""
    for case in op.iter_cases(Make(op.dtypes[0])):
        first = next(a for a in case if isinstance(a, torch.Tensor))
        sizes = tuple(first.shape)
        if len(sizes) != len(shape) or len(set(sizes)) != len(sizes) or min(sizes, default=0) < 2:
            continue
        new = dict(zip(sizes, shape, strict=True))
        return tuple(_other(a, make, new) if isinstance(a, torch.Tensor) else a for a in case)
    raise ShapeError(
        f"no case of {op.name} can be resized to {_text(shape)}: none has a first tensor with "
        f"{len(shape)} dims of different sizes; give the record sized=lambda make, *shape: (...)"
    )


def _other(tensor: torch.Tensor, make: Makes, new: dict[int, int]) -> Any:
    shape = tuple(new.get(n, n) for n in tensor.shape)
    if tensor.is_floating_point():
        return make(*shape)
    return inputs.resample(tensor, shape).to(make.device)


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape))
