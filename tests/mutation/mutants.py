# SPDX-License-Identifier: Apache-2.0
"""Makes mutants: copies of the C++ sources with one small fault each, generated, not hand-written.

A mutant is one edit of one line: a bound off by one, an operator or an index exchanged, a constant
changed, a term or a statement left out, a barrier dropped, an accumulator of another type. Which
lines an op compiles follows from its includes; which mutants are made, from a seed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parent.parent.parent / "src" / "opforge"
_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)
_CORE = ("core/types.h", "core/launch.h", "core/shared.h")
# Used by every op, and by few lines of it; faults here fail whole builds or everything at once.
_LEFT_ALONE = {f"include/opforge/{h}" for h in ("host.h", *_CORE)}
_NAME = r"[A-Za-z_]\w*"


@dataclass(frozen=True)
class Mutant:
    """One edit: line ``line`` of ``file`` (below src/opforge) becomes ``new``."""

    op: str
    place: str  # cpu or sim: what the line is compiled for
    file: str
    line: int  # from 1
    kind: str
    old: str
    new: str

    @property
    def name(self) -> str:
        return f"{self.op} {self.place} {self.file}:{self.line} {self.kind}"


# (kind, pattern, replacement): every match of a line is a mutant.
_EDITS: list[tuple[str, re.Pattern[str], str]] = [
    ("bound", re.compile(r"(?<=[\w)\]]) < (?=[\w(])"), " <= "),
    ("bound", re.compile(r"(?<=[\w)\]]) <= (?=[\w(])"), " < "),
    ("bound", re.compile(r"(?<=[\w)\]]) > (?=[\w(])"), " >= "),
    ("bound", re.compile(r"(?<=[\w)\]]) >= (?=[\w(])"), " > "),
    ("condition", re.compile(r" == "), " != "),
    ("condition", re.compile(r" != "), " == "),
    ("condition", re.compile(r" && "), " || "),
    ("condition", re.compile(r" \|\| "), " && "),
    ("condition", re.compile(r"\bif \((?!constexpr)"), "if (!"),
    ("operator", re.compile(r"(?<=[\w)\]]) \+ (?=[\w(])"), " - "),
    ("operator", re.compile(r"(?<=[\w)\]]) - (?=[\w(])"), " + "),
    ("operator", re.compile(r"(?<=[\w)\]]) \* (?=[\w(])"), " + "),
    ("operator", re.compile(r"(?<=[\w)\]]) / (?=[\w(])"), " * "),
    ("operator", re.compile(r"(?<=[\w)\]]) % (?=[\w(])"), " / "),
    ("operator", re.compile(r" \+= "), " = "),
    ("operator", re.compile(r" -= "), " += "),
    ("operator", re.compile(r"\bmin\("), "max("),
    ("operator", re.compile(r"\bmax\("), "min("),
    ("term", re.compile(rf"(?<=[\w)\]]) [+-] {_NAME}\b(?![\w(.\[<:])"), ""),
    ("term", re.compile(rf"(?<=[\w)\]]) \* {_NAME}\b(?![\w(.\[<:])"), ""),
    ("constant", re.compile(r"(?<![\w.\"<])(\d+)(?![\w.\"]|, \d+>)"), "+1"),
    ("constant", re.compile(r"(?<![\w\"])(\d+\.\d+)(?=f?\b)"), "*1.01"),
    ("constant", re.compile(r"\btrue\b"), "false"),
    ("constant", re.compile(r"\bfalse\b"), "true"),
    ("accumulator", re.compile(r"\bcompute_t<T>"), "T"),
    ("accumulator", re.compile(r"\bdouble\b"), "float"),
    ("accumulator", re.compile(r"\bint64_t\b"), "int"),
]
_BARRIER = re.compile(
    r"^\s*(?:\w+(?:\.|->|::))*(?:__sync\w+|sync\w*|await\w*|wait\w*)\([^;]*\);\s*$"
)
_STATEMENT = re.compile(
    rf"^\s*[*\w\[\].>()-]+(?: [+*/-]?=) [^{{}}]*;\s*$|^\s*{_NAME}[\w.:<>]*\(.*\);\s*$"
)
_INDEX = re.compile(rf"\[({_NAME}) ([+*]) ({_NAME})\]")
_SKIPPED = re.compile(
    r"^\s*(//|#|template|static_assert|using |namespace|struct|class|enum|OPFORGE_|\}|public"
    r"|private|friend|extern|__device__|__global__|inline |constexpr int64_t kMaxDims)"
)


def sources(op: str, place: str) -> list[Path]:
    """What an op compiles of our own code for a place: its sources and the headers they reach."""
    folder = SOURCE / "ops" / op
    pattern = "*.cpp" if place == "cpu" else "*.cu"
    queue, found = sorted(folder.glob(pattern)), []
    roots = (folder, SOURCE / "include")
    while queue:
        path = queue.pop()
        if path in found:
            continue
        found.append(path)
        for name in _INCLUDE.findall(path.read_text()):
            for root in (path.parent, *roots):
                if (root / name).is_file():
                    queue.append((root / name).resolve())
                    break
    return sorted(p for p in found if str(p.relative_to(SOURCE)) not in _LEFT_ALONE)


def of_line(line: str) -> Iterator[tuple[str, str]]:
    """Every mutant of a line: its kind, and the new line."""
    if _SKIPPED.match(line) or not line.strip():
        return
    code, _, comment = line.partition("//")
    tail = f"//{comment}" if comment else ""
    for kind, pattern, new in _EDITS:
        for match in pattern.finditer(code):
            text = new
            if new == "+1":
                text = str(int(match[1]) + 1)
            elif new == "*1.01":
                text = f"{float(match[1]) * 1.01:.9g}"
                text = text if "." in text or "e" in text else f"{text}.0"
            yield kind, code[: match.start()] + text + code[match.end() :] + tail
    for match in _INDEX.finditer(code):
        swapped = f"[{match[3]} {match[2]} {match[3]}]"
        yield "index", code[: match.start()] + swapped + code[match.end() :] + tail
    indent = code[: len(code) - len(code.lstrip())]
    if _BARRIER.match(code):
        yield "barrier", f"{indent};{tail}"
    elif _STATEMENT.match(code):
        yield "statement", f"{indent};{tail}"


def every(op: str, place: str, lines: set[tuple[str, int]] | None = None) -> list[Mutant]:
    """Every mutant of what an op compiles for a place; of some lines alone, if given."""
    found = []
    for path in sources(op, place):
        file = str(path.relative_to(SOURCE))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if lines is not None and (file, number) not in lines:
                continue
            seen = set()
            for kind, new in of_line(line):
                if new not in seen and new != line:
                    seen.add(new)
                    found.append(Mutant(op, place, file, number, kind, line, new))
    return found


def choose(ops: list[str], count: int, seed: int) -> list[Mutant]:
    """So many mutants: as many of each kind, op and place as there are, as evenly as it goes."""
    draw = random.Random(seed)
    groups: dict[tuple[str, str, str], list[Mutant]] = {}
    for op in ops:
        for place in ("cpu", "sim"):
            for mutant in every(op, place):
                groups.setdefault((op, place, mutant.kind), []).append(mutant)
    for found in groups.values():
        draw.shuffle(found)
    keys = sorted(groups)
    draw.shuffle(keys)
    chosen: list[Mutant] = []
    taken: set[tuple[str, int, str]] = set()  # a line of a shared header is mutated once
    while len(chosen) < count and any(groups.values()):
        for key in keys:
            while groups[key]:
                mutant = groups[key].pop()
                where = mutant.file, mutant.line, mutant.new
                if where not in taken:
                    taken.add(where)
                    chosen.append(mutant)
                    break
    return chosen[:count]
