# SPDX-License-Identifier: Apache-2.0
"""What is generated for every build, so that kernels and record agree.

The stable ABI checks only the number of arguments, and only at the call; a wrong type would be read
as raw bits. ``OPFORGE_IMPL`` compares each kernel with a generated header at compile time instead.

A schema without a kernel would be noticed at a first backward, or never: on the CPU the reference
serves. So a generated source asks the linker for what ``OPFORGE_IMPL`` defines for each schema.
"""

from __future__ import annotations

from opforge.op import Op

HEADER_NAME = "opforge_signatures.h"
REQUIRED_NAME = "opforge_required.c"


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


def required_source(op: Op) -> str:
    """C that does not link unless every schema is registered; hidden symbols must be defined."""
    names = [f"opforge_impl_{schema.name}" for schema in op.kernels]
    lines = [f"// Generated from the record of {op.name}. Do not edit."]
    lines += [f'extern const char {n} __attribute__((visibility("hidden")));' for n in names]
    lines.append('__attribute__((visibility("hidden"), used))')
    lines.append(f"const void* const opforge_required[] = {{{', '.join('&' + n for n in names)}}};")
    return "\n".join(lines) + "\n"
