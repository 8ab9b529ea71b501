# SPDX-License-Identifier: Apache-2.0
"""Records which blocks and comparisons run in libraries that are built for coverage."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from opforge.build import cache, compile
from opforge.build.plan import plan_recorder
from opforge.truth.coverage import code

_KINDS = ("integers", "constant", "floats", "cases")
_PAIRS = 6
_COMPARE = struct.Struct(f"<QIIII{2 * _PAIRS}Q")  # as in recorder.cpp


@dataclass(frozen=True)
class Compare:
    """A comparison in the code: its location, its outcomes, and its first distinct operands.

    For the kinds "constant" and "cases", the first operands are constants in the source.
    """

    library: str
    where: str
    kind: str
    outcomes: int  # bits: 1 less, 2 equal, 4 greater
    pairs: tuple[tuple[float, float], ...]


@dataclass
class Watched:
    """A loaded library whose code is recorded."""

    name: str  # the library's file name: op and target
    op: str
    target: str
    code: code.Code
    region: int
    first: int  # offset of its machine code in the library
    size: int
    begin: int  # its address in memory
    at_loading: set[int]  # blocks that ran during loading

    def ran(self) -> set[int]:
        """The blocks that ran since the last clear."""
        marks = ctypes.cast(library().opforge_cover_ran(self.region), ctypes.c_void_p).value
        assert marks is not None
        buffer = (ctypes.c_uint8 * self.size).from_address(marks)
        found = torch.frombuffer(buffer, dtype=torch.uint8).nonzero().view(-1)
        return set((found + self.first).tolist())


Blocks = dict[str, set[int]]  # library -> return addresses, as offsets


@dataclass
class Seen:
    """The recorded blocks and comparisons."""

    blocks: Blocks = field(default_factory=dict)
    compares: list[Compare] = field(default_factory=list)


_watched: list[Watched] = []


@functools.cache
def library() -> ctypes.CDLL:
    """The recorder library. Its symbols are visible to libraries that are loaded after it."""
    found = ctypes.CDLL(str(compile.build([plan_recorder()])[0].path), mode=ctypes.RTLD_GLOBAL)
    found.opforge_cover_watch.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
    for pointer in ("ran", "compares", "early"):
        getattr(found, f"opforge_cover_{pointer}").restype = ctypes.c_void_p
    for flag in ("switch", "loading"):
        getattr(found, f"opforge_cover_{flag}").argtypes = [ctypes.c_bool]
    return found


def watched(op: str, target: str) -> list[Watched]:
    """The loaded libraries of an op for a target. A backward may use other ops as well."""
    return [one for one in _watched if (one.op, one.target) == (op, target)]


@contextlib.contextmanager
def watching(built: cache.Library) -> Iterator[None]:
    """A context in which ``built`` is loaded, so that the recorder knows its code."""
    runtime = library()
    runtime.opforge_cover_loading(True)
    try:
        yield
    finally:
        runtime.opforge_cover_loading(False)
    lowest, begin, end = _mapping(str(built.path))
    count = runtime.opforge_cover_early_count()
    early = struct.unpack(f"<{count}Q", ctypes.string_at(runtime.opforge_cover_early(), 8 * count))
    at_loading = {pc - lowest for pc in early if begin <= pc < end}
    region = runtime.opforge_cover_watch(begin, end - begin)
    if region < 0:
        raise MemoryError("the recorder has no room for another library")
    _watched.append(
        Watched(
            built.path.name,
            built.manifest["op"],
            built.manifest["target"],
            code.read(built),
            region,
            begin - lowest,
            end - begin,
            begin,
            at_loading,
        )
    )


def _mapping(path: str) -> tuple[int, int, int]:
    """The addresses of a library in memory: its start, and its machine code."""
    lowest, begin, end = 1 << 64, 0, 0
    with open("/proc/self/maps") as maps:
        for line in maps:
            words = line.split(maxsplit=5)
            if len(words) < 6 or words[5].rstrip("\n") != path:
                continue
            low, high = (int(x, 16) for x in words[0].split("-"))
            lowest = min(lowest, low)
            if "x" in words[1]:
                begin, end = low, high
    return lowest, begin, end


@contextlib.contextmanager
def recording() -> Iterator[Seen]:
    """A context that records what runs inside. Its object is complete afterwards."""
    seen = Seen()
    runtime = library()
    runtime.opforge_cover_clear()
    runtime.opforge_cover_switch(True)
    try:
        yield seen
    finally:
        runtime.opforge_cover_switch(False)
        for one in _watched:
            seen.blocks[one.name] = one.ran()
        seen.compares = list(_compares())


def _compares() -> Iterator[Compare]:
    runtime = library()
    count = runtime.opforge_cover_compare_count()
    data = ctypes.string_at(runtime.opforge_cover_compares(), count * _COMPARE.size)
    for pc, kind, outcomes, pairs, _, *operands in _COMPARE.iter_unpack(data):
        for one in _watched:
            if 0 <= pc - one.begin < one.size:
                where = one.code.compares.get(pc - one.begin + one.first)
                if where is not None:
                    given = zip(operands[:pairs], operands[_PAIRS : _PAIRS + pairs], strict=True)
                    as_number = _double if _KINDS[kind] == "floats" else _signed
                    values = tuple((as_number(a), as_number(b)) for a, b in given)
                    yield Compare(one.name, where, _KINDS[kind], outcomes, values)


def _double(bits: int) -> float:
    number: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return number


def _signed(bits: int) -> int:
    return bits - (1 << 64 if bits >> 63 else 0)
