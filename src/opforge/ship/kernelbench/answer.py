# SPDX-License-Identifier: Apache-2.0
"""The answer: the problem's file with another ``forward``, and the op's kernels as strings.

The file compiles the kernels when it is imported, and needs torch and a compiler, but no opforge.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
from pathlib import Path

import torch

from opforge.build import arch, targets
from opforge.build.generated import HEADER_NAME, definitions, registration_source, signature_header
from opforge.build.parts import whole
from opforge.build.plan import (
    INCLUDE_DIR,
    OLDER_SYSTEMS_HEADER,
    REGISTRATION_HEADER,
    STANDARD,
    reachable,
)
from opforge.errors import RecordError
from opforge.op import Op
from opforge.ship.exportable import must_have_its_headers, must_have_kernels
from opforge.ship.kernelbench import loader
from opforge.ship.kernelbench.problem import Problem, by_name
from opforge.ship.kernelbench.values import default_of, literal
from opforge.ship.sources import HALF_ON

# What the generated source includes.
_HEADERS = [
    REGISTRATION_HEADER,
    OLDER_SYSTEMS_HEADER,
    REGISTRATION_HEADER.with_name("definitions.h"),
]


def check(op: Op) -> None:
    """Raise what makes an answer impossible."""
    must_have_kernels(op)
    must_have_its_headers(op)


def answer(op: Op, problem: Problem, call: str | None = None) -> str:
    """The text of a file whose ``ModelNew`` computes ``call``, by default the op by name."""
    return (
        f"{problem.with_forward(call or by_name(op, problem)).rstrip()}\n\n\n"
        f"# --- {op.name}, made by `opforge export --kernelbench` ---\n\n\n"
        f"{_function(op)}\n\n{_kernels(op, problem.dtype)}"
    )


def _namespace(op: Op, dtype: torch.dtype | None) -> str:
    """Where the file registers the op: another place for other kernels."""
    state = hashlib.sha256(f"{op.schema}\0{dtype}\0".encode())
    for name, text in sorted(_sources(op).items()):
        state.update(f"{name}\0{text}\0".encode())
    return f"kernelbench_{op.name}_{state.hexdigest()[:12]}"


def _function(op: Op) -> str:
    """A function that calls the op, with defaults for its last arguments."""
    taken: list[str] = []
    defaults = True
    for argument in reversed(op.forward.args):
        defaults = defaults and argument.type != "Tensor"
        default = f"={literal(default_of(op, argument))}" if defaults else ""
        taken.insert(0, argument.name + default)
    names = ", ".join(a.name for a in op.forward.args)
    several = len(op.forward.returns) > 1
    result = f"[:{len(op.outputs)}]" if len(op.outputs) > 1 else "[0]" if several else ""
    return (
        f"def {op.name}({', '.join(taken)}):\n"
        f"    return getattr(torch.ops, _NAME).{op.name}({names}){result}\n"
    )


def _kernels(op: Op, dtype: torch.dtype | None) -> str:
    """The files, how they are compiled, and the function that does it."""
    name = _namespace(op, dtype)
    files = {**_sources(op), HEADER_NAME: signature_header(op)}
    renamed = copy.copy(op)
    renamed.namespace = name
    builds = {}
    for target in (t for t in targets.FOR_USERS if targets.has_sources(op, t)):
        goal = targets.find(target)
        parts = whole(op, goal, dtype)
        (part,) = parts.all
        source = f"registration_{target}.cpp"
        files[source] = registration_source(renamed, goal, parts, part, target)
        files[source] += "\n".join(definitions([renamed])) + "\n"
        common = [*STANDARD, *(["-DUSE_CUDA"] if goal is targets.CUDA else [])]
        common += [f"-DOPFORGE_DTYPE={part.dtype}"] if part.dtype else []
        flags = [*(HALF_ON if goal is targets.CUDA else ()), *op.build.flags.get(goal.kind, ())]
        flags += arch.nvcc_flags(tuple(op.build.archs)) if goal is targets.CUDA else []
        builds[target] = {
            "sources": [*(_place(op, s) for s in part.sources), source],
            "common": common,
            "flags": flags,
            "libraries": [*op.build.libraries.get(goal.kind, ())],
        }
    texts = "".join(f"    {json.dumps(n)}: {_text(t)},\n" for n, t in sorted(files.items()))
    return (
        f'_NAME = "{name}"\n'
        f"_FILES = {{\n{texts}}}\n"
        f"_BUILDS = {json.dumps(builds, indent=4)}\n\n\n"
        f"{inspect.getsource(loader.compile_kernels)}\n\n"
        f"{loader.compile_kernels.__name__}(_NAME, _FILES, _BUILDS)\n"
    )


def _sources(op: Op) -> dict[str, str]:
    """The op's sources and all headers that they reach, by the names that they are included by."""
    assert op.folder is not None
    own = [(op.folder / str(one)).resolve() for one in op.build.include]
    every = tuple(s for t in targets.FOR_USERS for s in targets.find(t).sources(op))
    roots = (op.folder, INCLUDE_DIR, *own)
    files: dict[str, str] = {}
    for path, content in reachable([*every, *_HEADERS], roots).items():
        root = next((r for r in roots if path.is_relative_to(r)), None)
        name = str(path.relative_to(root)) if root else ""
        if not root or name in files:
            raise RecordError(
                f"{op.name} includes {path}, which one folder of headers cannot hold; move it "
                "into the op's folder under a name of its own"
            )
        files[name] = content.decode(errors="replace")
    return files


def _place(op: Op, source: Path) -> str:
    assert op.folder is not None
    return str(source.relative_to(op.folder))


def _text(text: str) -> str:
    """A source as a literal that a person can read."""
    plain = "'''" not in text and not text.endswith(("'", "\\"))
    return f"r'''{text}'''" if plain else json.dumps(text)
