# SPDX-License-Identifier: Apache-2.0
"""Makes the C++ sources of an elementwise op from a formula such as ``y = cap * tanh(x / cap)``.

The same formula is compiled for the GPU and for the CPU; see ``families/formula/host.h``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from opforge.errors import RecordError
from opforge.registration.schema import Schema

HEADER = "formula.h"
_CPP = {"float": "double", "int": "int64_t", "bool": "bool"}
_COMMENT = r"//[^\n]*|/\*.*?\*/"
# A number such as 0.5, 1. or 1e-3 without a suffix. C++ computes with it in double.
_NUMBER = r"(?<![\w.])(?:(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)(?![\w.])"


def sources(formulas: Sequence[tuple[Schema, str]]) -> tuple[dict[str, str], list[list[int]]]:
    """The files of an op, and for each formula the lines of the header where its text begins."""
    header = [
        "// Made by opforge.inline.",
        "#pragma once",
        "",
        "namespace opforge_formula {",
        "using namespace opforge;",
    ]
    binding = [
        "// Made by opforge.inline.",
        "#include <opforge/families/formula/host.h>",
        "",
        f'#include "{HEADER}"',
        "",
        "namespace opforge_formula {",
    ]
    places = []
    for schema, text in formulas:
        _check(schema, text)
        places.append(_add_struct(header, schema, text))
        binding += ["", *_function(schema)]
    end = ["", "}  // namespace opforge_formula", ""]
    both = "\n".join(binding + end)
    return {HEADER: "\n".join(header + end), "cuda.cu": both, "cpu.cpp": both}, places


def validate(**arguments: Any) -> None:
    """What the record of an elementwise op refuses: tensors of two dtypes, or of unlike shapes."""
    tensors = {n: v for n, v in arguments.items() if isinstance(v, torch.Tensor)}
    (first, x), *others = tensors.items()
    for name, other in others:
        if other.dtype != x.dtype:
            raise TypeError(
                f"opforge: {first} is {x.dtype} but {name} is {other.dtype}; convert one, as in "
                f"{name}.to({first}.dtype)"
            )
    try:
        torch.broadcast_shapes(*(t.shape for t in tensors.values()))
    except RuntimeError:
        shapes = ", ".join(f"{n} has shape {tuple(t.shape)}" for n, t in tensors.items())
        raise ValueError(f"opforge: {shapes}: they do not broadcast") from None


def _check(schema: Schema, text: str) -> None:
    what = f"the elementwise formula of {schema.name}"
    if len(schema.returns) > 1:
        raise RecordError(
            f"{what} makes one tensor, but its schema returns {len(schema.returns)}; "
            "give whole sources as cuda= and cpu="
        )
    for arg in schema.args:
        if arg.type != "Tensor" and arg.type not in _CPP:
            raise RecordError(
                f"{what} cannot take {arg.name}, which is a {arg.type}; it takes Tensor, float, "
                "int and bool. Give whole sources as cuda= and cpu="
            )
        if arg.name == "real":
            raise RecordError(f"{what} uses the name real for a type; rename the argument")
    (y,) = schema.returns
    if not re.search(rf"\b{y.name}\s*=(?!=)", _without_comments(text)):
        raise RecordError(f"{what} does not assign {y.name}; write {y.name} = <an expression>")


def _without_comments(text: str) -> str:
    """The text with blanks in place of comments, so that lines and columns stay."""
    return re.sub(_COMMENT, lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)


def _add_struct(header: list[str], schema: Schema, text: str) -> list[int]:
    """Append the struct of a formula. Returns the lines, from 1, where its text begins."""
    tensors = [a.name for a in schema.args if a.type == "Tensor"]
    numbers = [(a.name, _CPP[a.type]) for a in schema.args if a.type != "Tensor"]
    y = schema.returns[0].name
    code = re.sub(_NUMBER, r"number<real>(\g<0>)", _without_comments(text)).rstrip()
    alone = re.fullmatch(rf"(\s*{y}\s*=)(?!=)([^;{{}}]*);?", code)
    expression = " " * len(alone[1]) + alone[2] if alone and "\n" not in alone[1] else None

    reals = ", ".join(f"real {n}" for n in tensors)
    kinds = [f"{'real' if kind == 'double' else kind} {name}" for name, kind in numbers]
    every = ", ".join([reals, *kinds])
    handed = [*tensors, *(f"number<real>({n})" if k == "double" else n for n, k in numbers)]
    header += ["", f"struct {schema.name}_formula {{", *(f"  {k} {n};" for n, k in numbers)]
    header += [
        "  template <class real>",
        f"  OPFORGE_FORMULA real operator()({reals}) const {{",
        f"    return value<real>({', '.join(handed)});",
        "  }",
        "  template <class real>",
        f"  OPFORGE_FORMULA static real value({every}) {{",
    ]
    begins = [len(header) + 2]
    if expression is not None:
        header += ["    return", *expression.split("\n"), "    ;", "  }"]
    else:
        header += [f"    real {y};", *code.split("\n"), f"    ; return {y};", "  }"]
    header += ["#if !defined(USE_CUDA)", "  template <class real>"]
    if expression is not None:
        header += [f"  static constexpr bool vectors = requires({every}) {{", "    {"]
        begins.append(len(header) + 1)
        header += [*expression.split("\n"), "    } -> std::same_as<real>;", "  };"]
    else:
        header += ["  static constexpr bool vectors = false;"]
    header += ["#endif", "};"]
    return begins


def _function(schema: Schema) -> list[str]:
    parameters = [
        f"const Tensor& {a.name}" if a.type == "Tensor" else f"{_CPP[a.type]} {a.name}"
        for a in schema.args
    ]
    tensors = ", ".join(a.name for a in schema.args if a.type == "Tensor")
    numbers = ", ".join(a.name for a in schema.args if a.type != "Tensor")
    formula = f"{schema.name}_formula{{{numbers}}}"
    return [
        f"Tensor {schema.name}({', '.join(parameters)}) {{",
        f'  return each_element("{schema.name}", {formula}, {tensors});',
        "}",
        f"OPFORGE_IMPL({schema.name}, {schema.name})",
    ]
