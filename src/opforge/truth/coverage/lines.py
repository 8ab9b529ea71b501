# SPDX-License-Identifier: Apache-2.0
"""Maps blocks to lines of the author's source: which were reached, and which need not be.

A comment ``// unreached: <reason>`` on a line, or alone on the line above, says that no test can
reach it. On a line that opens a brace, it covers all lines up to the closing brace.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from opforge.build.plan import INCLUDE_DIR, OP_SOURCES, OPFORGE_SOURCES
from opforge.errors import RecordError
from opforge.op import Op
from opforge.truth.coverage.recorder import Blocks, Watched

_MARK = re.compile(r"//\s*unreached\b:?[ \t]*(.*)$")
_FAR = 30  # lines to search back for the condition of a block


@dataclass
class Source:
    """A source file: its lines, and the reasons why some are not reached."""

    path: Path
    lines: list[str]
    reasons: dict[int, str] = field(default_factory=dict)  # line, counted from 1 -> reason

    @classmethod
    def read(cls, path: Path) -> Source:
        """Read a file and its marks. Raises for a mark without a reason."""
        lines = path.read_text(errors="replace").splitlines()
        source = cls(path, lines)
        for i, line in enumerate(lines):
            mark = _MARK.search(line)
            if mark is None:
                continue
            reason = mark[1].strip()
            if not reason:
                raise RecordError(
                    f"{path}:{i + 1}: `// unreached:` without a reason; say why no test gets there"
                )
            code = line[: mark.start()].strip()
            for covered in source._covered(i if code else i + 1):
                source.reasons[covered + 1] = reason
        return source

    def _covered(self, start: int) -> range:
        """The lines that a mark covers: one, or all up to the closing brace."""
        depth = 0
        for i in range(start, len(self.lines)):
            code = self.lines[i].partition("//")[0]
            if i == start:
                code = code.lstrip().removeprefix("}")  # as in "} else {"
            depth += code.count("{") - code.count("}")
            if depth <= 0:
                return range(start, i + 1)
        return range(start, start + 1)

    def condition(self, line: int) -> str:
        """The condition in the source that decides whether a line is reached."""
        code = self._code(line)
        indent = _indent(code)
        for i in range(line, max(line - _FAR, 0), -1):
            above = self._code(i)
            if not above.strip() or (i != line and _indent(above) >= indent):
                continue
            indent = min(indent, _indent(above))
            if found := _inside(above):
                return found
            if re.search(r"\belse\b", above):
                return f"else of {self._before_else(i)}"
            if indent == 0:
                break  # a function, or a class
        return _short(code)

    def _before_else(self, line: int) -> str:
        """The condition of the ``if`` that an ``else`` belongs to."""
        indent = _indent(self._code(line))
        for i in range(line - 1, max(line - _FAR, 0), -1):
            above = self._code(i)
            if _indent(above) == indent and (found := _inside(above)):
                return found
        return _short(self._code(line))

    def _code(self, line: int) -> str:
        text = self.lines[line - 1].partition("//")[0].rstrip() if line <= len(self.lines) else ""
        return "" if text.startswith("#") else text


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip()) if text.strip() else 1 << 30


def _inside(text: str) -> str:
    """The condition of a line: ``cols > 65536`` for ``if (cols > 65536) {``, or ""."""
    if label := re.match(r"\s*(case\b.*|default\s*):", text):
        return _short(label[1])
    start = re.search(r"\b(?:if|while|for|switch)\s*(?:constexpr\s*)?\(", text)
    if start is None:
        return ""
    depth = 1
    for i in range(start.end(), len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return _short(text[start.end() : i])
    return _short(text[start.end() :]) + " …"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 70 else f"{text[:69]}…"


@dataclass
class Reached:
    """The reached share of an op's code."""

    points: dict[str, bool]  # source location of a block -> whether it was reached
    instances: tuple[
        int, int
    ]  # blocks of machine code that ran, and all; each template instance counts
    named: dict[str, str]  # location that was not reached -> the reason in the source
    sources: dict[str, Source]

    @property
    def missing(self) -> list[str]:
        """Locations that were not reached and have no reason in the source."""
        return [p for p, reached in self.points.items() if not reached and p not in self.named]

    @property
    def share(self) -> float:
        """The reached share of the blocks that should be reached."""
        counted = [r for p, r in self.points.items() if r or p not in self.named]
        return sum(counted) / len(counted) if counted else 1.0

    def of(self, wanted: Callable[[str], bool]) -> Reached:
        """The part for some of the files."""
        files = {f for f in self.sources if wanted(f)}
        points = {p: r for p, r in self.points.items() if _split(p)[0] in files}
        named = {p: r for p, r in self.named.items() if p in points}
        sources = {f: s for f, s in self.sources.items() if f in files}
        return Reached(points, self.instances, named, sources)

    def by_file(self) -> dict[str, dict[str, list[int]]]:
        """For each file, the lines that were reached completely, and the others."""
        missing = set(self.missing)
        found: dict[str, dict[str, set[int]]] = {}
        for point in self.points:
            file, line = _split(point)
            kinds = found.setdefault(Path(file).name, {"reached": set(), "missing": set()})
            kinds["missing" if point in missing else "reached"].add(line)
        return {f: {k: sorted(v) for k, v in kinds.items()} for f, kinds in found.items()}

    def texts(self) -> list[str]:
        """A text such as ``kernel.cuh:120-133 (cols > 65536)`` for each unreached stretch."""
        by_file: dict[str, dict[int, bool]] = {}
        missing = set(self.missing)
        for point in self.points:
            file, line = _split(point)
            here = by_file.setdefault(file, {})
            here[line] = here.get(line, False) or point in missing
        found = []
        for file, lines in sorted(by_file.items()):
            stretch: list[int] = []
            for line in [*sorted(lines), 0]:
                if line and lines[line]:
                    stretch.append(line)
                elif stretch:
                    found.append(self._text(file, stretch))
                    stretch = []
        return found

    def _text(self, file: str, stretch: list[int]) -> str:
        first, last = stretch[0], stretch[-1]
        where = f"{first}-{last}" if last > first else f"{first}"
        return f"{Path(file).name}:{where} ({self.sources[file].condition(first)})"


def _split(point: str) -> tuple[str, int]:
    file, line, *_ = re.split(r":(?=\d)", point)
    return file, int(line)


def path_of(op: Op, file: str) -> Path | None:
    """The path of a file named by debug information, if it is the op's or opforge's header."""
    if op.folder is not None and file.startswith(f"{OP_SOURCES}/"):
        return op.folder / file.removeprefix(f"{OP_SOURCES}/")
    if file.startswith(f"{OPFORGE_SOURCES}/"):
        return INCLUDE_DIR / file.removeprefix(f"{OPFORGE_SOURCES}/")
    return None


def is_own(file: str) -> bool:
    """Whether a file is in the op's folder."""
    return file.startswith(f"{OP_SOURCES}/")


def reached(op: Op, libraries: Iterable[Watched], blocks: Blocks) -> Reached:
    """Map recorded blocks to the author's source."""
    points: dict[str, bool] = {}
    ran = total = 0
    sources: dict[str, Source] = {}
    named: dict[str, str] = {}
    for one in libraries:
        for at, point in one.code.blocks.items():
            file, line = _split(point)
            if (path := path_of(op, file)) is None:
                continue
            got = at in blocks.get(one.name, ()) or at in one.at_loading
            if not got and at in one.code.refusals:
                continue
            if file not in sources:
                sources[file] = Source.read(path)
            ran, total = ran + got, total + 1
            points[point] = points.get(point, False) or got
            if not points[point] and (reason := sources[file].reasons.get(line)):
                named[point] = reason
    named = {p: r for p, r in named.items() if not points[p]}
    return Reached(dict(sorted(points.items())), (ran, total), named, sources)
