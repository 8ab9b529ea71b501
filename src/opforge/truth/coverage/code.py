# SPDX-License-Identifier: Apache-2.0
"""Finds the basic blocks of a coverage build: their source lines, and how control reaches them.

The compiler calls the recorder at the start of every basic block, so the calls in the disassembly
list all blocks. Two kinds of blocks do not count: those that run only while an exception is thrown,
and those that only lead to an error (the failing side of a check).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from opforge.build import cache
from opforge.errors import ToolchainError

_FILE = "blocks.json"
_FUNCTION = re.compile(r"^([0-9a-f]+) <(.+)>:$")
_BLOCK = "__sanitizer_cov_trace_pc"
_COMPARES = ("__sanitizer_cov_trace_cmp", "__sanitizer_cov_trace_const", "__sanitizer_cov_trace_sw")
# External functions that do not return.
_ENDS = re.compile(
    r"^(__cxa_(throw|rethrow|bad_cast|throw_bad_array_new_length)|_Unwind_Resume|abort|exit|"
    r"__stack_chk_fail|__assert_fail|_ZSt\d+__throw_\w+|_ZSt9terminatev|"
    r"_ZN7opforge3sim(4trap|16assertion_failed)\w+)$"
)


@dataclass(frozen=True)
class Code:
    """The blocks of a library, by return address as an offset into the library."""

    blocks: dict[int, str]  # source location: "file:line" or "file:line:discriminator"
    refusals: frozenset[int]  # blocks that only lead to an error
    compares: dict[int, str]


def read(library: cache.Library) -> Code:
    """The blocks of a library. They are found once and stored next to it."""
    kept = library.folder / _FILE
    if not kept.exists():
        cache.replace_text(kept, json.dumps(_analyse(library.path)))
    found = json.loads(kept.read_text())
    return Code(
        {int(k): v for k, v in found["blocks"].items()},
        frozenset(found["refusals"]),
        {int(k): v for k, v in found["compares"].items()},
    )


def _analyse(library: Path) -> dict[str, object]:
    functions = list(_functions(_run(["objdump", "-d", "--no-show-raw-insn", str(library)])))
    _find_noreturn(functions)
    blocks: list[tuple[int, int]] = []  # address of the call, return address
    refusals = []
    compares: list[tuple[int, int]] = []
    for f in functions:
        compares += f.compares
        reached, returning = f.reached(), f.returning()
        for start, calls in f.calls.items():
            if start not in reached:
                continue  # belongs to an exception
            blocks += calls
            if start not in returning:
                refusals += [after for _, after in calls]
    places = _places(library, [call for call, _ in blocks + compares])
    return {
        "blocks": {after: places[call] for call, after in blocks if call in places},
        "refusals": sorted(refusals),
        "compares": {after: places[call] for call, after in compares if call in places},
    }


@dataclass
class _Function:
    """The control flow of one function. A piece is identified by its first address."""

    name: str
    entry: int
    next: dict[int, list[int]] = field(default_factory=dict)
    # The end of a piece: "ret", or the name of the function that it calls or jumps to.
    ends: dict[int, str] = field(default_factory=dict)
    leaves: set[int] = field(default_factory=set)  # pieces that jump to another function
    calls: dict[int, list[tuple[int, int]]] = field(
        default_factory=dict
    )  # calls that report a block
    compares: list[tuple[int, int]] = field(default_factory=list)

    def reached(self) -> set[int]:
        """The pieces that are reachable from the entry. Only exceptions reach the others."""
        return _closure([self.entry], self.next)

    def returning(self) -> set[int]:
        """The pieces from which the function can return."""
        before: dict[int, list[int]] = {}
        for piece, following in self.next.items():
            for other in following:
                before.setdefault(other, []).append(piece)
        ends = [p for p, end in self.ends.items() if end == "ret" or p in self.leaves]
        return _closure(ends, before)


def _closure(start: list[int], edges: dict[int, list[int]]) -> set[int]:
    found, waiting = set(start), list(start)
    while waiting:
        for other in edges.get(waiting.pop(), ()):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


def _find_noreturn(functions: list[_Function]) -> None:
    """Cut the flow after calls of functions that do not return, until nothing changes."""
    callers: dict[str, list[_Function]] = {}
    for f in functions:
        for end in set(f.ends.values()):
            callers.setdefault(end, []).append(f)
    waiting = [name for name in callers if _ENDS.match(name)]
    known = set(waiting)
    while waiting:
        name = waiting.pop()
        for f in callers.get(name, ()):
            for piece, end in f.ends.items():
                if end == name:
                    f.next[piece] = []
                    f.leaves.discard(piece)
            if f.name not in known and f.entry not in f.returning():
                known.add(f.name)
                waiting.append(f.name)


def _functions(disassembly: str) -> Iterator[_Function]:
    name, entry = "", 0
    lines: list[tuple[int, str]] = []
    for line in disassembly.splitlines():
        if match := _FUNCTION.match(line):
            if name and lines:
                yield _flow(name, entry, lines)
            name, entry, lines = match[2], int(match[1], 16), []
        elif name and ":\t" in line:
            address, _, text = line.partition(":\t")
            lines.append((int(address, 16), text))
    if name and lines:
        yield _flow(name, entry, lines)


def _flow(name: str, entry: int, lines: list[tuple[int, str]]) -> _Function:
    """Split a function into pieces, which end at jumps, calls and targets of jumps."""
    end_of_function = lines[-1][0] + 1
    steps = []
    heads = {entry}
    for i, (address, text) in enumerate(lines):
        following = lines[i + 1][0] if i + 1 < len(lines) else end_of_function
        kind, target, callee = _step(text)
        steps.append((address, following, kind, target, callee))
        if kind and not callee.startswith("__sanitizer_cov_trace"):
            heads.add(following)
            if entry <= target < end_of_function:
                heads.add(target)
    f = _Function(name, entry)
    piece = entry
    for address, following, kind, target, callee in steps:
        if address in heads:
            piece = address
        if callee.startswith(_BLOCK):
            f.calls.setdefault(piece, []).append((address, following))
        elif callee.startswith(_COMPARES):
            f.compares.append((address, following))
        elif kind == "call":
            f.ends[piece] = callee
            f.next[piece] = [following]
        elif kind == "ret":
            f.ends[piece], f.next[piece] = "ret", []
        elif kind == "trap":
            f.next[piece] = []
        elif kind in ("jmp", "jcc"):
            inside = entry <= target < end_of_function
            f.next[piece] = [target] if inside else []
            if not inside:
                f.ends[piece] = callee
                f.leaves.add(piece)
            if kind == "jcc":
                f.next[piece].append(following)
        elif following in heads:
            f.next[piece] = [following]
    return f


def _step(text: str) -> tuple[str, int, str]:
    """The effect of an instruction on control flow: its kind, its target and the target's name."""
    words = text.split()
    if words and words[0] in ("bnd", "notrack", "rep", "repz"):
        words = words[1:]
    if not words:
        return "", -1, ""
    what = words[0]
    if what.startswith("ret"):
        return "ret", -1, ""
    if what in ("ud2", "hlt"):
        return "trap", -1, ""
    if what != "call" and not what.startswith("j"):
        return "", -1, ""
    kind = "call" if what == "call" else "jmp" if what == "jmp" else "jcc"
    if len(words) < 3 or words[1].startswith("*"):
        return kind, -1, "*"
    callee = words[2].strip("<>").partition("@")[0].partition("+")[0]
    return kind, int(words[1], 16), callee


def _places(library: Path, addresses: list[int]) -> dict[int, str]:
    """The source locations of machine code addresses."""
    text = "\n".join(f"{a:x}" for a in addresses)
    lines = _run(["addr2line", "-e", str(library)], text).splitlines()
    found = {}
    for address, line in zip(addresses, lines, strict=True):
        where, _, rest = line.partition(" (discriminator ")
        if not where.endswith((":?", ":0")):
            found[address] = f"{where}:{rest[:-1]}" if rest else where
    return found


def _run(command: list[str], text: str | None = None) -> str:
    program = shutil.which(command[0])
    if program is None:
        raise ToolchainError(
            f"coverage needs {command[0]}, a part of binutils (Debian, Ubuntu: apt-get install "
            "binutils)"
        )
    done = subprocess.run([program, *command[1:]], input=text, capture_output=True, text=True)
    if done.returncode != 0:
        raise ToolchainError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return done.stdout
