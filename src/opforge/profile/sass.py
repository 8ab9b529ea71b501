# SPDX-License-Identifier: Apache-2.0
"""Parses what cuobjdump, nvdisasm and ptxas report about compiled kernels."""

from __future__ import annotations

import ctypes
import functools
import re
from collections import Counter
from dataclasses import dataclass, field

from opforge.profile.facts import Kernel
from opforge.profile.metrics import short_name

# Headings of functions in the listings of cuobjdump and nvdisasm.
_FUNCTION = re.compile(r"^\s*Function : (\S+)|^\.text\.(\S+):")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)\b")
_USAGE = re.compile(r"^\s*Function (\S+):\s*\n\s*(REG:.*)$", re.MULTILINE)
_MATRIX = ("HMMA", "HGMMA", "QGMMA", "IMMA", "IGMMA", "DMMA", "BMMA", "UTCHMMA", "UTCQMMA")
_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}


@dataclass
class Code:
    """A compiled kernel. Facts that were not reported are zero."""

    name: str  # mangled
    registers: int = 0
    stack: int = 0  # bytes per thread: spilled registers and arrays indexed at run time
    shared: int = 0  # bytes per block, static
    spills: int | None = None  # bytes of spill loads and stores; only ptxas reports them
    counts: Counter[str] = field(default_factory=Counter)  # instructions of interest


def merge(codes: list[Code]) -> list[Kernel]:
    """Kernels by their name in the source, with the largest figures of a template's instances."""
    by_name: dict[str, list[Code]] = {}
    for code in codes:
        by_name.setdefault(short_name(demangle(code.name)), []).append(code)
    return [_largest(name, instances) for name, instances in by_name.items()]


def _largest(name: str, codes: list[Code]) -> Kernel:
    counts = sum((c.counts for c in codes), Counter[str]())
    known = {key for c in codes for key in c.counts}  # because a sum of counters drops zeros
    loads = [int(key.split()[-1]) for key in counts if key.startswith("load ")]
    return Kernel(
        name=name,
        instances=len(codes),
        registers=max(c.registers for c in codes) or None,
        stack_bytes=max(c.stack for c in codes),
        with_stack=sum(c.stack > 0 for c in codes),
        spill_bytes=max((c.spills for c in codes if c.spills is not None), default=None),
        shared_bytes=max(c.shared for c in codes),
        load_width=max(loads, default=None),
        instructions={key: counts[key] for key in sorted(known)},
    )


def resources(text: str) -> dict[str, Code]:
    """Parse ``cuobjdump --dump-resource-usage``. Returns kernels by name."""
    found = {}
    for name, usage in _USAGE.findall(text):
        values = {k: int(v) for k, v in re.findall(r"([A-Z]+):(\d+)", usage)}
        stack = values.get("STACK", 0) + values.get("LOCAL", 0)
        found[name] = Code(name, values.get("REG", 0), stack, values.get("SHARED", 0))
    return found


def ptxas(text: str) -> dict[str, Code]:
    """Parse ``nvcc -Xptxas -v``. Returns kernels by name."""
    found = {}
    for part in text.split("Compiling entry function '")[1:]:
        name = part.split("'")[0]
        own = part.partition(f"Function properties for {name}")[2]  # not of the functions it calls
        code = Code(name, registers=_first(r"Used (\d+) registers", part))
        code.shared = _first(r"(\d+) bytes smem", part)
        code.stack = _first(r"(\d+) bytes stack frame", own)
        code.spills = sum(_first(rf"(\d+) bytes spill {way}", own) for way in ("stores", "loads"))
        found[name] = code
    return found


def _first(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match else 0


def count(text: str, codes: dict[str, Code]) -> bool:
    """Count the instructions of a listing into ``codes``; False if it has no code at all."""
    current: Code | None = None
    seen = False
    for line in text.splitlines():
        if function := _FUNCTION.match(line):
            name = function[1] or function[2]
            current = codes.setdefault(name, Code(name))
            # Known to be none, unlike "not counted".
            current.counts.update({"local": 0, "barrier": 0, "matrix": 0})
        elif current is not None and (instruction := _INSTRUCTION.match(line)):
            seen = True
            if kind := _kind(instruction[1]):
                current.counts[kind] += 1
    return seen


def _kind(opcode: str) -> str | None:
    """The kind under which an instruction is counted, or None, as for most."""
    name, *modifiers = opcode.split(".")
    if name in ("LDG", "STG", "LDGSTS"):
        width = next((_WIDTHS[m] for m in modifiers if m in _WIDTHS), 4)
        return f"{'store' if name == 'STG' else 'load'} {width}"
    if name in ("LDL", "STL"):
        return "local"
    if name in ("BAR", "UCGABAR_ARV", "UCGABAR_WAIT"):
        return "barrier"
    if name in _MATRIX:
        return "matrix"
    return "bulk copy" if name.startswith(("UBLKCP", "UTMALDG", "UTMASTG")) else None


@functools.cache
def demangle(name: str) -> str:
    """The C++ name of a symbol, or the symbol itself if it cannot be demangled."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")  # torch needs it, so it is loaded already
    except OSError:
        return name
    library.__cxa_demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    found = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not found:
        return name
    text = ctypes.string_at(found).decode(errors="replace")
    ctypes.CDLL(None).free(ctypes.c_void_p(found))
    return text
