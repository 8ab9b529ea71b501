# SPDX-License-Identifier: Apache-2.0
"""The steps from an idea to a shipped op: which are done, and the command for the next one."""

from __future__ import annotations

import ast
import hashlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from opforge import discover, history
from opforge.build.targets import find, has_sources
from opforge.errors import RecordError
from opforge.new.marks import Mark, marks_in
from opforge.op import Backward, Make, Op, files_of
from opforge.terminal.words import ago, percent

State = Literal["done", "edit", "missing", "fault", "stale", "none"]
_FILES = ("*.py", "*.cuh", "*.cu", "*.cpp", "*.h")


@dataclass(frozen=True)
class Step:
    """One step. ``todo`` is what to do about it, or "" if nothing must be done."""

    name: str
    state: State
    text: str
    todo: str = ""


@dataclass(frozen=True)
class _Look:
    """An op folder, as the functions below look at it. ``where`` is how commands name it."""

    op: Op
    where: str
    marks: dict[str, list[Mark]]  # step -> the places to edit that are left

    @property
    def folder(self) -> Path:
        assert self.op.folder is not None
        return self.op.folder


def steps(where: str) -> list[Step]:
    """The steps of an op folder (or a built-in op), in order."""
    try:
        op = discover.find(where)
    except RecordError as error:
        if not (Path(where) / "op.py").is_file():
            raise
        return [Step("formula", "fault", str(error), f"mend {Path(where) / 'op.py'}")]
    look = _Look(op, where, _marks(op))
    found = []
    for name, examine in _STEPS.items():
        step = examine(look)
        marks = look.marks.get(name, [])
        if marks and step.state != "fault":
            mark = marks[0]
            more = f", and {len(marks) - 1} more" if len(marks) > 1 else ""
            place = look.folder / mark.file
            todo = f"edit {_shown(place, where)}, line {mark.line}: {mark.text}. Delete the mark"
            step = Step(name, "edit", f"{mark.file}:{mark.line}: {mark.text}{more}", todo)
        found.append(step)
    return found


def _shown(file: Path, where: str) -> Path:
    """A file of the op by the path that the user gave."""
    return Path(where) / file.name if Path(where).is_dir() else file


def _marks(op: Op) -> dict[str, list[Mark]]:
    """The marks that are left in an op's files, by the step that they belong to."""
    found: dict[str, list[Mark]] = {}
    assert op.folder is not None
    for file in files_of(op.folder, *_FILES):
        name = str(file.relative_to(op.folder))
        for mark in marks_in(name, file.read_text(encoding="utf-8", errors="replace")):
            found.setdefault(_step_of(mark), []).append(mark)
    return {step: sorted(marks, key=lambda m: m.number) for step, marks in found.items()}


def _step_of(mark: Mark) -> str:
    if mark.text.startswith("the gradient"):
        return "backward"
    if not mark.file.endswith(".py"):
        return "kernel"
    return "cases" if mark.text.startswith("the inputs") else "formula"


# What a look at the folder tells.


def _formula(look: _Look) -> Step:
    if changed := _changed_origin(look.folder):
        force = f"opforge new {look.op.name} --from {changed} --into {look.folder.parent} --force"
        return Step("formula", "stale", f"{changed} has changed since it was written", force)
    return Step("formula", "done", look.op.schema)


def _changed_origin(folder: Path) -> str:
    """Where the formula is that the op was written from, if it is another by now."""
    text = (folder / "op.py").read_text(encoding="utf-8")
    found = re.search(r"^# From (.+):(\w+), digest (\w+)\.$", text, re.MULTILINE)
    if found is None or not (folder / found[1]).is_file():
        return ""
    file = (folder / found[1]).resolve()
    try:
        same = function_digest(file, found[2]) == found[3]
    except (SyntaxError, LookupError):
        same = False
    return "" if same else f"{file}:{found[2]}"


def function_digest(file: Path, name: str) -> str:
    """A digest of a function's source, as it is in a file. Raises LookupError without one."""
    text = file.read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return hashlib.sha256((ast.get_source_segment(text, node) or "").encode()).hexdigest()[
                :12
            ]
    raise LookupError(name)


def _cases(look: _Look) -> Step:
    try:
        count = len(list(look.op.iter_cases(Make(look.op.dtypes[0]))))
    except Exception as error:  # the record's own code raised it
        text = f"cases raises {type(error).__name__}: {error}"
        return Step("cases", "fault", text, f"mend cases in {look.folder / 'op.py'}")
    whose = "derived from the schema" if look.op.cases is None else "in the record"
    return Step("cases", "done", f"{count} {whose}")


def _kernel(look: _Look) -> Step:
    if look.op.composed is not None:
        return Step("kernel", "none", "composed of other ops")
    sources = [s for target in ("cuda", "cpu") for s in find(target).sources(look.op)]
    if not sources:
        return Step("kernel", "none", "the reference runs on the CPU, and nothing on a GPU")
    return Step("kernel", "done", ", ".join(str(s.relative_to(look.folder)) for s in sources))


def _binding(look: _Look) -> Step:
    lacking = []
    for target in ("cuda", "cpu"):
        text = "\n".join(s.read_text(errors="replace") for s in find(target).sources(look.op))
        bound = set(re.findall(r"OPFORGE_IMPL\(\s*(\w+)", text))
        names = [k.name for k in look.op.kernels]
        lacking += [f"OPFORGE_IMPL({n}, …) for {target}" for n in names if text and n not in bound]
    if lacking:
        todo = f"write {lacking[0]} in a source of {look.where}"
        return Step("binding", "missing", f"no {', no '.join(lacking)}", todo)
    if not (has_sources(look.op, "cuda") or has_sources(look.op, "cpu")):
        return Step("binding", "none", "without kernels, there is nothing to bind")
    return Step("binding", "done", ", ".join(k.name for k in look.op.kernels))


def _fake(look: _Look) -> Step:
    try:
        for case in look.op.iter_cases(Make(look.op.dtypes[0])):
            look.op.cost(*case)  # which runs the op on meta tensors
    except Exception as error:  # the record's own code raised it
        text = f"on meta tensors, the reference raises {type(error).__name__}: {error}"
        return Step("fake", "fault", text, f"mend the reference in {look.folder / 'op.py'}")
    return Step("fake", "done", "derived from the reference; it runs on meta tensors")


def _backward(look: _Look) -> Step:
    if isinstance(look.op.backward, Backward):
        return Step("backward", "done", look.op.functions[1].text)
    how = "derived from the reference" if look.op.backward is None else "in plain PyTorch"
    return Step("backward", "done", how)


# What the last results tell.


def _last(
    name: str, command: str, words: Callable[[dict[str, Any]], tuple[bool, str]]
) -> Callable[[_Look], Step]:
    """The step of a command, told by its last result. ``words``: whether it is good, and a text."""

    def examine(look: _Look) -> Step:
        todo = f"opforge {command.format(look.where)}"
        facts = history.last(look.op, name)
        if facts is None:
            return Step(name, "missing", "not yet", todo)
        good, text = words(facts)
        text = f"{text}, {ago(time.time() - facts['at'])}"
        if not facts["current"]:
            return Step(name, "stale", f"{text}; files have changed since", todo)
        return Step(name, "done" if good else "fault", text, "" if good else todo)

    return examine


def _check_words(facts: dict[str, Any]) -> tuple[bool, str]:
    if facts["impossible"]:
        return False, f"could not be checked: {facts['impossible']}"
    where = f"{facts['check']}, on {', '.join(facts['places'])}"
    first = f" ({facts['first']})" if facts["first"] else ""
    return not facts["failed"], f"{facts['count']}{first}, {where}"


def _bench_words(facts: dict[str, Any]) -> tuple[bool, str]:
    if facts["errors"]:
        return False, f"{facts['errors']} of {facts['workloads']} workloads failed"
    shares, speeds = facts["shares"], facts["speeds"]
    parts = [f"{facts['workloads']} workloads on {facts['device']}"]
    if shares:
        parts.append(f"{_span(shares, percent)} of the ceiling")
    if speeds:
        parts.append(f"{_span(speeds, '{:.2g}'.format)} times as fast as the best alternative")
    return True, ", ".join(parts)


def _span(values: list[float], shown: Callable[[float], str]) -> str:
    low, high = shown(min(values)), shown(max(values))
    return low if low == high else f"{low} to {high}"


def _profile(look: _Look) -> Step:
    if not has_sources(look.op, "cuda"):
        return Step("profile", "none", "no CUDA kernels of its own")
    return _last("profile", "profile {}", lambda f: (True, f"{f['title']}: {f['advice']}"))(look)


_STEPS: dict[str, Callable[[_Look], Step]] = {
    "formula": _formula,
    "cases": _cases,
    "kernel": _kernel,
    "binding": _binding,
    "fake": _fake,
    "backward": _backward,
    "check": _last("check", "check {}", _check_words),
    "bench": _last("bench", "bench {} --backward", _bench_words),
    "profile": _profile,
    "ship": _last("ship", "build {} --wheel", lambda f: (True, str(f["what"]))),
}


def next_of(found: list[Step]) -> Iterator[Step]:
    """The steps that something must be done about, in order."""
    return (step for step in found if step.todo)
