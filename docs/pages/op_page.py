# SPDX-License-Identifier: Apache-2.0
"""The page of one op: its record, its check results, its measurements."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

import torch

from opforge.check.place import PLACES
from opforge.check.results import NOT_APPLICABLE, NOT_RUN, PASSED, Report, Result
from opforge.check.row import all_rows
from opforge.discover import function_of
from opforge.op import Backward, Op

from . import measured
from .data import Data
from .notes import notes
from .text import GENERATED, code, enumerated, listed, prose, words_only

_LAYOUTS = ("offset", "strides", "expanded", "negative-view")
_GRADIENT_LAYOUTS = ("narrow-gradient", "expanded-gradient")
_LIMITS = ("empty", "scalars", "huge", "far-apart", "many-rows", "long-row", "special-values")
_GRADIENTS = ("gradients", *_GRADIENT_LAYOUTS, "double-backward", "changed-before-backward")
_SAME_BITS = ("deterministic", "repeats")
_AROUND = (
    "compile",
    "export",
    "vmap",
    "autocast",
    "graph",
    "first-call-in-capture",
    "side-stream",
    "threads",
    "distributed",
    "modules",
)
_SIGN = {PASSED: "✓", NOT_RUN: "not run", NOT_APPLICABLE: "·"}


def page(data: Data, op: Op) -> str:
    """The whole page."""
    function, checks = function_of(op), _checks(data.reports, op.name)
    about, described = _documented(function)
    parts = {
        "Use": _use(op),
        "Math": _math(op),
        "Arguments": _arguments(op, function, described),
        "Layouts": _layouts(op, checks),
        "Limits": _limits(op, checks),
        "Gradients": _gradients(op, checks),
        "Memory": measured.memory(data, op),
        "Determinism": _determinism(checks),
        "With the rest of PyTorch": _around(op, checks),
        "Accuracy": measured.accuracy(data, op),
        "Speed": measured.speed(data, op),
        "Known losses": measured.known_losses(data, op),
    }
    top = (
        f"# {op.name}\n\n{GENERATED}{prose(notes(op).summary)}"
        + code(f"opforge.{op.name}{_signature(function)}", "python")
        + "\n"
        + "".join(map(prose, about))
        + prose(
            f"Source: [src/opforge/ops/{op.name}](../../src/opforge/ops/{op.name}).",
            "Check results: [scores.md](../scores.md); [check.md](../check.md) explains the rows.",
            measured.origin(data, op),
        )
    )
    bodies = {name: body.rstrip() for name, body in parts.items() if body}
    return top + "\n\n".join(f"## {name}\n\n{body}" for name, body in bodies.items()) + "\n"


def _signature(function: Callable[..., Any]) -> str:
    return str(inspect.signature(function)).replace("'", "")


def _documented(function: Callable[..., Any]) -> tuple[list[str], dict[str, str]]:
    """The paragraphs of a docstring, and its text about each argument."""
    doc = re.sub(r":\w+:`([\w.]+)`", r"`\1`", inspect.getdoc(function) or "").replace("``", "`")
    text, _, arguments = doc.partition("\nArgs:\n")
    described = {
        name: " ".join(words.split())
        for name, words in re.findall(
            r"^(\w+): (.*?)(?=^\w+: |\Z)", textwrap.dedent(arguments), re.DOTALL | re.MULTILINE
        )
    }
    return [" ".join(part.split()) for part in text.strip().split("\n\n")], described


def _use(op: Op) -> str:
    use, example = notes(op).use, notes(op).example.strip()
    text = prose(use) if use else ""
    return text + (code(f"import torch, opforge\n\n{example}", "python") if example else "")


# --- what the record says -------------------------------------------------------------------------


def _math(op: Op) -> str:
    text = "The reference defines the correct result:\n\n" + code(_source(op.reference), "python")
    back = op.backward.reference if isinstance(op.backward, Backward) else op.backward
    return text + "\nThe gradients:\n\n" + code(_source(back), "python")


def _source(function: Any) -> str:
    """The source of a function, or its name if it is not written in Python."""
    if function is None:
        return "derived from the reference by autograd"
    try:
        return textwrap.dedent(inspect.getsource(function))
    except TypeError:
        return f"torch.{function.__name__}"


def _arguments(op: Op, function: Callable[..., Any], described: dict[str, str]) -> str:
    types = {a.name: f"`{a.type}`" for a in op.forward.args}
    lines = []
    for name, known in inspect.signature(function).parameters.items():
        default = "" if known.default is known.empty else f"`{known.default!r}`"
        kind = str(known.annotation).replace("|", "\\|")
        said = [described.get(name, "")] if described else []
        lines.append([f"`{name}`", f"`{kind}`", types.get(name, ""), default, *said])
    heads = ["argument", "type", "in the schema", "default", *(["what it is"] if described else [])]
    own = [
        f"Exception: `{name}` is {enumerated([_name(d) for d in dtypes])}."
        for name, dtypes in op.own_dtypes.items()
    ]
    return (
        words_only(heads, lines)
        + "\n"
        + prose(
            f"Supported dtypes: {enumerated([_name(d) for d in op.dtypes])}. All tensors have the "
            "same dtype and device.",
            *own,
            f"The schemas, under `torch.ops.{op.namespace}`:",
        )
        + code("\n".join(k.text for k in op.functions))
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _layouts(op: Op, checks: dict[str, dict[str, Result]]) -> str:
    out = (
        f"Outputs have the strides of `{op.like}`. If that has gaps or overlaps, they are dense, "
        "with the dims in the same order."
        if op.like
        else "Outputs are new and contiguous."
    )
    return prose("Inputs may have any strides and any offset.", out) + _rows(checks, _LAYOUTS)


def _limits(op: Op, checks: dict[str, dict[str, Result]]) -> str:
    text = ""
    if op.validate is not None:
        written = inspect.unwrap(op.validate)
        validate = getattr(written, "func", written)  # of a partial
        doc = (inspect.getdoc(validate) or "The arguments fit together.").splitlines()[0]
        text = f"Requirement: {doc[0].lower()}{doc[1:]} Otherwise it raises:\n\n"
        text += listed(f"{kind}: {message}" for kind, message in _refusals(validate)) + "\n"
    huge = _all_passed(checks, ("huge", "far-apart"))
    return (
        text
        + prose(
            "Other dtypes, mixed devices and arguments of the wrong kind raise an error.",
            "Sizes and strides may exceed 2³¹." if huge else "",
        )
        + _rows(checks, _LIMITS)
    )


def _refusals(validate: Callable[..., None]) -> list[tuple[str, str]]:
    """The kind and the message of every error that a function raises; … stands for values."""
    found = []
    tree = ast.parse(textwrap.dedent(inspect.getsource(validate)))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Raise | ast.Call)]
    for node in sorted(nodes, key=lambda node: node.lineno):
        if isinstance(node, ast.Call):
            called = _called(node, validate)
            found += _refusals(called) if called else []
        elif isinstance(node.exc, ast.Call):
            message = node.exc.args[0]
            parts = message.values if isinstance(message, ast.JoinedStr) else [message]
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts
            )
            found.append((ast.unparse(node.exc.func), text.partition(": ")[2] or text))
    return found


def _called(node: ast.Call, caller: Callable[..., None]) -> Callable[..., None] | None:
    """A function of opforge's own that a function calls, also through a module it has imported."""
    value: Any = inspect.getmodule(caller)
    for name in ast.unparse(node.func).split("."):
        value = getattr(value, name, None)
    own = inspect.isfunction(value) and (value.__module__ or "").startswith("opforge")
    return value if own else None


def _gradients(op: Op, checks: dict[str, dict[str, Result]]) -> str:
    saved, kept = _saved(op)
    text = enumerated([f"`{s}`" for s in saved]) or "no tensor"
    if saved and set(saved) <= {r.name for r in op.outputs}:
        text += " (an output, which the next layer saves anyway)"
    if kept:
        text += (" and " if saved else ", only ") + enumerated([f"`{k}`" for k in kept])
    shared = op.backward.shared if isinstance(op.backward, Backward) else {}
    same = [f"The gradient of `{a}` is `{b}`, without a copy." for a, b in shared.items()]
    return prose(f"Saved for the backward: {text}.", *same) + _rows(checks, _GRADIENTS)


def _saved(op: Op) -> tuple[list[str], list[str]]:
    """The tensors that a backward asks for, and its shapes and numbers, by name."""
    if isinstance(op.backward, Backward):
        asked = [a.name for a in op.functions[1].args]
    elif op.backward is not None:
        asked = list(inspect.signature(op.backward).parameters)
    else:
        asked = [a.name for a in op.forward.args]
    tensors = {a.name for a in (*op.forward.args, *op.forward.returns) if a.is_tensor}
    derived = {f"grad_{r.name}" for r in op.forward.returns}
    derived |= {f"needs_{a.name}" for a in op.forward.args}
    return (
        [n for n in asked if n in tensors],
        [_plain(n) for n in asked if n not in tensors and n not in derived],
    )


def _plain(name: str) -> str:
    return f"{name.removesuffix('_shape')}.shape" if name.endswith("_shape") else name


# --- what checks have shown -----------------------------------------------------------------------


def _checks(reports: list[Report], name: str) -> dict[str, dict[str, Result]]:
    """Row -> place -> result."""
    found: dict[str, dict[str, Result]] = {}
    for result in (r for report in reports for o in report.ops if o.op == name for r in o.results):
        found.setdefault(result.row, {})[result.place] = result
    return found


def _rows(checks: dict[str, dict[str, Result]], names: tuple[str, ...]) -> str:
    """Rows of the check: why each is tested, and the outcome at each place."""
    known = {r.name: r for r in all_rows()}
    lines = []
    for name in names:
        found = checks.get(name, {})
        if all(r.outcome == NOT_APPLICABLE for r in found.values()):
            continue  # it does not apply to the op
        marks = [_SIGN.get(found[p].outcome, "✗") if p in found else "" for p in PLACES]
        lines.append([name, *marks, known[name].reason, _notes(found)])
    if not lines:
        return "No row of `opforge check` applies.\n" if checks else "Not checked yet.\n"
    heads = ["row", *(kind.title for kind in PLACES.values()), "why it is tested", "notes"]
    return words_only(heads, lines)


def _all_passed(checks: dict[str, dict[str, Result]], names: tuple[str, ...]) -> bool:
    ran = [r for name in names for r in checks.get(name, {}).values()]
    return bool(ran) and all(r.outcome == PASSED for r in ran)


def _notes(found: dict[str, Result]) -> str:
    """The notes of the rows; equal ones appear once."""
    places: dict[str, list[str]] = {}
    for place, result in found.items():
        if result.text:
            text = result.text.splitlines()[0].replace("|", "\\|")
            places.setdefault(text, []).append(PLACES[place].title)
    several = len(places) > 1 or any(len(p) < len(found) for p in places.values())
    return "; ".join(f"{t} ({', '.join(p)})" if several else t for t, p in places.items())


def _determinism(checks: dict[str, dict[str, Result]]) -> str:
    same = "The same inputs give the same bits every time, on the same kind of machine."
    text = same if _all_passed(checks, _SAME_BITS) else "Not proven."
    return prose(text) + _rows(checks, _SAME_BITS)


def _around(op: Op, checks: dict[str, dict[str, Result]]) -> str:
    rule = {
        None: "does not convert the inputs",
        "promote": "converts the inputs to the widest of their dtypes",
    }
    how = rule.get(op.autocast) if not isinstance(op.autocast, torch.dtype) else None
    how = how or f"converts the inputs to {str(op.autocast).removeprefix('torch.')}"
    return prose(f"Autocast {how}.") + _rows(checks, _AROUND)
