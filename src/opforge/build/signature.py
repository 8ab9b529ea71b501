# SPDX-License-Identifier: Apache-2.0
"""The header generated for every build: the C++ signatures the record's schemas promise.

The stable ABI checks only the number of arguments, and only at the call; a wrong type would be read
as raw bits. ``OPFORGE_IMPL`` compares each kernel with this header at compile time instead.
"""

from __future__ import annotations

from opforge.op import Op

HEADER_NAME = "opforge_signatures.h"


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
