# SPDX-License-Identifier: Apache-2.0
"""The two files that every build generates, so that kernels and record agree.

Another build system gets the header as well, and a source that makes a Python module.

The stable ABI checks only the number of arguments, and only at the call; a wrong type would be read
as raw bits. Instead, ``OPFORGE_IMPL`` compares each kernel with the generated header at compile
time.

The generated source registers the kernels with torch, or makes them known to the op's other parts.
It names each schema's kernel, so a schema without one does not link. (It would go unnoticed until a
first backward otherwise, or forever: on the CPU the reference serves.)
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from opforge.build.parts import BASE, Part, Parts
from opforge.build.targets import Target
from opforge.op import Op
from opforge.registration.register import BELOW
from opforge.registration.schema import Schema

HEADER_NAME = "opforge_signatures.h"
SOURCE_NAME = "opforge_registration.cpp"


def signature_header(op: Op) -> str:
    """The text of the generated header."""
    lines = [
        f"// Generated from the record of {op.name}. Do not edit.",
        "#pragma once",
        "#include <optional>",
        "#include <tuple>",
        "#include <vector>",
        "#include <torch/csrc/stable/tensor.h>",
        "namespace opforge::schema {",
    ]
    for schema in op.kernels:
        lines.append(f"using {schema.name} = {schema.cpp_signature};")
        readable = schema.cpp_signature.replace("torch::stable::", "").replace("std::", "")
        written = " ".join(schema.text.split())  # a schema may span lines, a literal may not
        text = f"schema `{written}` needs a C++ function `{readable}`"
        lines.append(f'#define OPFORGE_SCHEMA_{schema.name} "{text}"')
    lines.append("}  // namespace opforge::schema")
    return "\n".join(lines) + "\n"


def registration_source(op: Op, target: Target, parts: Parts, part: Part, stem: str) -> str:
    """The text of the generated source. ``stem`` is what the files of all parts begin with."""
    lines = [
        f"// Generated from the record of {op.name}. Do not edit.",
        "#include <opforge/host/registration.h>",
        "#include <torch/headeronly/version.h>",
        *(["#include <opforge/host/older_systems.h>"] if target.for_users else []),
        *_loader(parts, stem),
        *_units(parts, part),
    ]
    if part.name != BASE:
        lines += _exported(op, part)
    elif parts.dtypes:
        lines += _routed(op, target, parts)
    else:
        lines += _registered(op, target, part)
    return "\n".join(lines) + "\n"


def module_source(op: Op, target: Target, parts: Parts, namespace: str) -> str:
    """The text of a source for other build systems: a Python module with the op's kernels."""
    (part,) = parts.all
    named = copy.copy(op)
    named.namespace = namespace
    functions = dict(zip(("forward", "backward"), (s.name for s in op.kernels), strict=False))
    functions |= {schema.name: schema.name for schema in op.kernels}
    pairs = ", ".join(f'{{"{name}", "{schema}"}}' for name, schema in functions.items())
    lines = [
        f"// Generated from the record of {op.name}. Do not edit.",
        "#include <opforge/host/module.h>",  # the first, because it includes Python.h
        "#include <opforge/host/registration.h>",
        "#include <torch/headeronly/version.h>",
        *_units(parts, part),
        *definitions([named]),
        *_registered(named, target, part),
        f"static constexpr opforge::ModuleFunction functions[] = {{{pairs}}};",
        f'OPFORGE_MODULE("{namespace}", functions)',
    ]
    return "\n".join(lines) + "\n"


def definitions(ops: Sequence[Op]) -> list[str]:
    """C++ that defines the ops where nobody has yet, when the library is loaded."""
    lines = ["#include <opforge/host/definitions.h>"]
    for space in sorted({op.namespace for op in ops}):
        mine = [schema for op in ops if op.namespace == space for schema in op.kernels]
        texts = [s.under(n) for s in mine for n in (s.name, f"{s.name}.{BELOW}")]
        lines += strings(f"{space}_schemas", texts)
        lines.append(f'static const opforge::Definitions of_{space}("{space}", {space}_schemas);')
    return lines


def strings(name: str, values: Sequence[str]) -> list[str]:
    """A table of C++."""
    quoted = [f'    "{" ".join(value.split())}",' for value in values]
    return [f"static constexpr const char* {name}[] = {{", *quoted, "};"]


def _kernel(schema: Schema, dtype: str = "") -> str:
    """The symbol that OPFORGE_IMPL defines."""
    return f"opforge_{dtype or 'impl'}_{schema.name}"


def _registered(op: Op, target: Target, part: Part) -> list[str]:
    """The library has the kernels of all dtypes, or of the only one."""
    kernels = {schema.name: _kernel(schema, part.dtype) for schema in op.kernels}
    lines = [f"OPFORGE_KERNEL({symbol})" for symbol in kernels.values()]
    return lines + _registration(op, target, kernels)


def _routed(op: Op, target: Target, parts: Parts) -> list[str]:
    """The kernels are in parts by dtype; a function per schema finds the right one."""
    names = ", ".join(f'{{"{d}", aoti_torch_dtype_{_TORCH[d]}()}}' for d in parts.dtypes)
    lines = [f"static const opforge::Dtype dtypes[] = {{{names}}};"]
    kernels = {}
    for schema in op.kernels:
        name = kernels[schema.name] = f"route_{schema.name}"
        kinds = "".join(_KINDS.get(a.type, "s") for a in schema.args)
        lines += [
            f"static void {name}(uint64_t* stack, uint64_t arguments, uint64_t returns) {{",
            f'  static opforge::ByDtype kernels("{schema.name}", "{kinds}", dtypes);',
            "  kernels(stack, arguments, returns);",
            "}",
        ]
    return lines + _registration(op, target, kernels)


def _registration(op: Op, target: Target, kernels: dict[str, str]) -> list[str]:
    entries = ", ".join(f'{{"{schema}", {symbol}}}' for schema, symbol in kernels.items())
    where = f'"{target.namespace(op)}", "{target.dispatch_key}", TORCH_ABI_VERSION'
    # Data that names all kernels: the linker then tells all that are missing, not the first.
    return [
        f"static constexpr opforge::Registration::Entry entries[] = {{{entries}}};",
        f"static const opforge::Registration registration({where}, entries);",
    ]


def _exported(op: Op, part: Part) -> list[str]:
    """What the base finds by name in another part."""
    lines, entries = [], []
    if part.dtype:
        for schema in op.kernels:
            symbol = _kernel(schema, part.dtype)
            lines.append(f"OPFORGE_KERNEL({symbol})")
            entries.append(f'{{"{schema.name}", reinterpret_cast<void*>({symbol})}}')
    entries += [f'{{"{unit}", opforge_find_unit("{unit}")}}' for unit in part.units]
    return [*lines, f"OPFORGE_EXPORT({', '.join(entries)})"]


def _units(parts: Parts, part: Part) -> list[str]:
    """``opforge_find_unit``: units in this library by their address, others by their part."""
    lines = [f"OPFORGE_UNIT_OF_THIS_LIBRARY({unit})" for unit in part.units]
    lines.append("void* opforge_find_unit(const char* name) {")
    for unit, where in parts.units.items():
        found = f"(void*)&opforge_unit_{unit}"
        if unit not in part.units:
            found = f'opforge::from_part("{where}", "{unit}")'
        lines.append(f'  if (opforge::same(name, "{unit}")) return {found};')
    return [*lines, "  return nullptr;", "}"]


def _loader(parts: Parts, stem: str) -> list[str]:
    """How this library finds others: none without parts."""
    return [f'OPFORGE_LOADER("{stem}")'] if len(parts.all) > 1 else []


_TORCH = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}
# What has to be freed of an argument that no kernel takes: see host/registration.h.
_KINDS = {"Tensor": "t", "Tensor?": "T", "int[]": "l", "int[]?": "L"}
_KINDS |= {"int?": "o", "float?": "o", "bool?": "o"}
