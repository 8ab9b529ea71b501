# SPDX-License-Identifier: Apache-2.0
"""The files of an op from a formula: texts by name, all of them or an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from opforge.formula import read, save
from opforge.formula.dtypes import supported
from opforge.formula.example import Example
from opforge.formula.graph import Graph, Input, Output, Unmapped, Value, cone
from opforge.formula.group import Grouping, Kernel
from opforge.formula.source import Source
from opforge.formula.write.host import Function, check_members, host_function
from opforge.formula.write.kernel import struct
from opforge.formula.write.record import Record
from opforge.new.steps import function_digest
from opforge.new.wrap import wrapped
from opforge.registration.schema import Arg
from opforge.terminal.words import camel

_SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
_STYLE = "{BasedOnStyle: Google, ColumnLimit: 100}"


@dataclass
class Written:
    """What was made: texts of files, what was chosen, and what no kernel was written for."""

    files: dict[str, str]
    graph: Graph | None = None
    choices: list[save.Choice] = field(default_factory=list)
    chosen: save.Choice | None = None
    unmapped: list[tuple[str, Unmapped]] = field(default_factory=list)  # what of it, and why
    kernels: list[str] = field(default_factory=list)  # in words


def write(
    name: str, source: Source, example: Example, wanted: str | None = None, into: Path = Path()
) -> Written:
    """The folder of an op. Raises FormulaError for a function that no op can be made of."""
    graph = read.read(source, example)
    made = Written({}, graph)
    forward, backward = _functions(name, source, graph, made, wanted)
    record = Record(
        name,
        source,
        example,
        graph,
        forward,
        backward,
        supported(source, example),
        origin(source, into / name),
        _operations(forward) if forward else 0,
    )
    made.files = {"op.py": record.text()}
    functions = [f for f in (forward, backward) if f]
    if functions:
        made.files = {
            "cpu.cpp": _binding(name, functions, "cpu"),
            "cuda.cu": _binding(name, functions, "cuda"),
            "host.h": _host(name, functions, graph),
            "kernel.cuh": _kernels(functions, graph),
            "op.py": record.text(),
        }
    made.kernels = [_in_words(f) for f in functions]
    made.files = {file: _formatted(file, text) for file, text in made.files.items()}
    made.files[f"test_{name}.py"] = _test(name)
    made.files["README.md"] = _readme(name, source, made, record)
    return made


def _functions(
    name: str, source: Source, graph: Graph, made: Written, wanted: str | None
) -> tuple[Function | None, Function | None]:
    """The forward and the backward, each if there are kernels for it."""
    inputs = {i.value: i.name for i in graph.tensors}
    try:
        if graph.why_no_kernel:
            raise graph.why_no_kernel
        forward = _function(name, graph, graph.outputs, inputs, source, "")
        host_function(forward, graph, name)
    except Unmapped as reason:
        made.unmapped.append(("the formula", reason))
        return None, None
    try:
        if graph.why_no_gradient:
            raise graph.why_no_gradient
        made.choices = save.choices(graph)
        made.chosen = save.choose(graph, wanted)
        leaves = save.given(graph, made.chosen.kept)
        backward = _function(f"{name}_backward", graph, graph.gradients, leaves, source, "Backward")
        host_function(backward, graph, name)
        kinds = {k.kind for k in backward.grouping.kernels}
        forward.has_rows = bool(kinds & {"rows", "columns"})
    except Unmapped as reason:
        made.unmapped.append(("the gradient", reason))
        return forward, None
    return forward, backward


def origin(source: Source, folder: Path) -> str:
    """The comment that tells where the formula is, and a digest of it, for ``opforge next``."""
    file = Path(source.file).resolve()
    try:
        digest = function_digest(file, source.name)
    except (LookupError, SyntaxError, OSError):  # a function in a function, or in a notebook
        return f"# From the function {source.name}.\n"
    return f"# From {os.path.relpath(file, folder.resolve())}:{source.name}, digest {digest}.\n"


def _function(
    name: str,
    graph: Graph,
    results: list[Output],
    leaves: dict[Value, str],
    source: Source,
    suffix: str,
) -> Function:
    grouping = Grouping(graph, results, leaves)
    values = cone([r.value for r in results], leaves)
    used = {leaves[v] for v in values if v in leaves}
    tensors: dict[str, Input | Output] = {}
    everything: list[Input | Output] = [*graph.incoming, *graph.outputs, *graph.tensors]
    for tensor in everything:
        is_forward = not suffix
        if tensor.name in used or (is_forward and tensor in graph.tensors):
            tensors[tensor.name] = tensor
    numbers = {v.name for v in values if v.op == "number"}
    arguments = [Arg(n, "Tensor") for n in tensors if n not in {i.name for i in graph.inputs}]
    for argument in graph.inputs:
        if argument.name in tensors or argument.name in numbers or not suffix:
            arguments.append(Arg(argument.name, "Tensor" if argument.is_tensor else "float"))
    function = Function(name, arguments, results, grouping, [], tensors)
    whole = [t.name for t in graph.tensors if read.is_whole(graph, t.value)]
    if suffix and whole and not any(read.is_whole(graph, t.value) for t in tensors.values()):
        function.shape = f"{whole[0]}_shape"
        place = len([a for a in arguments if a.type == "Tensor"])
        arguments.insert(place, Arg(function.shape, "int[]"))
    base = camel(name.removesuffix("_backward")) + suffix
    written = [k for k in grouping.kernels if k.kind != "fill"]
    for kernel in grouping.kernels:
        if kernel.kind == "fill":
            function.structs.append(None)
            continue
        title = base if len(written) == 1 else f"{base}{_role(kernel)}"
        taken = {s.name for s in function.structs if s}
        count, choice = 2, title
        while choice in taken:
            choice, count = f"{title}{count}", count + 1
        function.structs.append(struct(kernel, choice, source, graph.frame))
    check_members(function)
    if suffix:
        for incoming in graph.incoming:
            if incoming.name not in tensors:
                raise Unmapped(f"{incoming.name} has no effect")
    return function


def _role(kernel: Kernel) -> str:
    if kernel.kind == "rows":
        return "Rows"
    if kernel.total is not None:
        return camel(kernel.total.tensor)
    return camel(kernel.results[0].tensor)


def _operations(function: Function) -> int:
    return max(1, sum(s.operations for s in function.structs if s))


def _in_words(function: Function) -> str:
    kinds = [k.kind for k in function.grouping.kernels if k.kind != "fill"]
    return f"{function.name}: {', '.join(kinds)}"


def _kernels(functions: list[Function], graph: Graph) -> str:
    heading = []
    for word, function in zip(("Forward", "Backward"), functions, strict=False):
        reads = [n for n, t in function.tensors.items() if read.is_whole(graph, t.value)]
        axes = frozenset(graph.frame)
        writes = [
            r.name
            for r in function.results
            if frozenset(d for d in r.dims if d is not None) == axes
        ]
        times = sum(len(k.given.get("whole", {})) for k in function.grouping.kernels)
        made = f"writes {_and(writes)}" if writes else "writes what is small"
        again = f", {times - len(reads)} of them again" if times > len(reads) else ""
        heading.append(
            f"{word} reads {_and(reads) or 'nothing'}{again} and {made}: "
            f"{(times + len(writes)) * 2} bytes and {_operations(function)} operations for each "
            "element of 16 bits."
        )
    text = [
        _SPDX + "\n".join(f"// {line}" for line in heading),
        "#pragma once",
        "",
        "#include <opforge/families/formula/values.h>",
        "",
        "namespace opforge {",
        "",
    ]
    text += [s.text for f in functions for s in f.structs if s]
    return "\n".join([*text, "}  // namespace opforge", ""])


def _and(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _host(name: str, functions: list[Function], graph: Graph) -> str:
    text = [
        _SPDX + "// Check, allocate, launch: the same for the GPU and the CPU.",
        "#pragma once",
        "",
        '#include "kernel.cuh"',
        "",
        "namespace opforge {",
        "",
    ]
    text += [host_function(f, graph, name) for f in functions]
    return "\n".join([*text, "}  // namespace opforge", ""])


def _binding(name: str, functions: list[Function], device: str) -> str:
    lines = [
        _SPDX + f"#include <opforge/families/formula/{device}_host.h>",
        "",
        '#include "host.h"',
        "",
        "namespace opforge {",
        "",
    ]
    lines += [f"OPFORGE_IMPL({f.name}, {f.name})" for f in functions]
    return "\n".join([*lines, "", "}  // namespace opforge", ""])


def _test(name: str) -> str:
    return (
        '"""Every row of `opforge check` as a test: kernels, gradients and record agree."""\n\n'
        "from pathlib import Path\n\nimport opforge.testing\n\n"
        f"test_{name} = opforge.testing.matrix(Path(__file__).parent)\n"
    )


def _readme(name: str, source: Source, made: Written, record: Record) -> str:
    schema = record.schema
    statements = "\n".join(s.text for s in source.statements)
    lines = [
        f"# {name}",
        "",
        f"`{schema}`",
        "",
        f"Written by `opforge new {name} --from {Path(source.file).name}:{source.name}`; the "
        "files are yours to edit.",
        "",
        "```python",
        statements,
        "```",
        "",
        "| kernels | |",
        "|---|---|",
    ]
    lines += [
        "| "
        + " | ".join(f"`{p.strip()}`" if i == 0 else p.strip() for i, p in enumerate(k.split(":")))
        + " |"
        for k in made.kernels
    ]
    for what, reason in made.unmapped:
        where = f" (line {reason.line})" if reason.line else ""
        how = "is derived from" if what == "the gradient" else "runs as"
        lines += [
            "",
            f"There is no kernel for {what}{where}: {reason.reason}. It {how} the reference.",
        ]
    lines += [
        "",
        "```",
        f"opforge check {name}    # prove it",
        f"opforge bench {name}    # time it",
        f"opforge next {name}     # what comes next; whether the formula has changed",
        "```",
        "",
    ]
    return "\n".join(lines)


def _formatted(file: str, text: str) -> str:
    """As clang-format and ruff write it, where they are installed."""
    beside = Path(sys.executable).parent
    if file.endswith(".py"):
        tool = _tool("ruff", beside)
        fix = [
            "check",
            "--fix-only",
            "--quiet",
            "--isolated",
            "--select",
            "I",
            "--line-length",
            "100",
            "-",
        ]
        tidy = ["format", "--quiet", "--isolated", "--line-length", "100", "-"]
        commands = [[tool, *fix], [tool, *tidy]] if tool else []
    else:
        tool = _tool("clang-format", beside)
        commands = [[tool, f"--style={_STYLE}"]] if tool else []
    if not commands:
        return wrapped(file, text)
    for command in commands:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        text = done.stdout if done.returncode == 0 and done.stdout else text
    return text


def _tool(name: str, beside: Path) -> str | None:
    own = beside / name
    return str(own) if own.is_file() else shutil.which(name)
