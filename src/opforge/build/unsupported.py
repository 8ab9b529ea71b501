# SPDX-License-Identifier: Apache-2.0
"""Finds what the simulator does not support, before a compiler reports it in its own words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from opforge.errors import NotSimulated
from opforge.op import Op, files_of

# A pattern, its name and what to do. The message names the first one that matches a line.
_CONSTRUCTS = [
    (r"\bwgmma\b(?!\.h\b)", "wgmma", "use warpgroup_multiply() of opforge/core/wgmma.h"),
    (
        r"\bmma\.sync\b",
        "tensor-core instructions",
        "use warp_multiply() of opforge/core/mma.h",
    ),
    (r"\bwmma::", "tensor-core instructions", "use opforge/core/wmma.h"),
    (r"\btcgen05\b", "tensor-core instructions", "they run on a GPU only"),
    (r"#\s*include\s*[<\"]cu(?:te|tlass)/", "CUTLASS", "kernels built on it run on a GPU only"),
    (r"#\s*include\s*<mma\.h>", "tensor-core instructions", "use opforge/core/wmma.h"),
    (r"#\s*include\s*<cuda_(?:fp16|bf16)\.h>", "CUDA's half types", "use opforge/core/types.h"),
    (r"<<<", "<<<…>>>", "launch through opforge::launch"),
    (r"\b__shared__\b", "a bare __shared__", "take shared memory from opforge::shared<Struct>()"),
    (
        r"\bcp\.async\b|\b__pipeline_",
        "asynchronous copies",
        "use piece_copy() of opforge/core/pieces.h, or bulk_copy() of opforge/core/async.h",
    ),
    (r"\bmbarrier\b", "mbarriers", "use Barrier of opforge/core/async.h"),
    (
        r"__cluster_dims__|\bcluster_group\b",
        "clusters",
        "launch with Config::cluster, and use opforge/core/cluster.h",
    ),
    (r"\basm\s*(?:volatile|__volatile__)?\s*\(|\b__asm", "inline PTX", "add a plain C++ version"),
    (
        r"\b__(?:exp|exp10|log|log2|log10|sin|cos|tan|pow|fdivide)f\b",
        "an approximate function",
        "the simulator cannot reproduce its bits; use the function without the underscores",
    ),
    (r"\bcooperative_groups\b", "cooperative groups", "use the warp and block intrinsics"),
    (
        r"#\s*include\s*<(?:thrust/|cu(?:da/|b/|rand|blas|dnn|fft|sparse))",
        "a CUDA library",
        "the simulator does not have it",
    ),
    (r"\btexture<|\btex[123]D", "textures", "the simulator does not have them"),
]
_PATTERNS = [(re.compile(pattern), name, advice) for pattern, name, advice in _CONSTRUCTS]
_FILES = ("*.cu", "*.cuh", "*.h", "*.hpp")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


_DIRECTIVE = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b(.*)")
# Whether a macro is defined in the simulator. Nothing is known about other macros.
_KNOWN = {"OPFORGE_SIM": True, "USE_CUDA": True, "__CUDA_ARCH__": False, "__CUDACC__": False}


def check_op(op: Op) -> None:
    """Raise where an op cannot be simulated: by its record, or for a construct it uses."""
    if op.build.not_simulated:
        raise NotSimulated(f"not simulated: {op.build.not_simulated}")
    if op.folder is not None:
        check(op.folder)


def check(folder: Path) -> None:
    """Raise for the first construct in the folder's CUDA sources that cannot be simulated."""
    for file in files_of(folder, *_FILES):
        for number, line in _compiled_lines(file.read_text(errors="replace")):
            for pattern, name, advice in _PATTERNS:
                if pattern.search(line):
                    raise NotSimulated(f"not simulated: uses {name} ({file}:{number}); {advice}")


def _compiled_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines, with their numbers, that are no comment and that the simulator would compile."""
    # For every #if around: whether its current branch is compiled, and whether one before it was.
    around: list[tuple[bool, bool]] = []
    for number, line in enumerate(_COMMENT.sub(_blank, text).splitlines(), 1):
        match = _DIRECTIVE.match(line)
        if match is None:
            if all(compiled for compiled, _ in around):
                yield number, line
            continue
        kind, condition = match.groups()
        if kind == "endif":
            del around[-1:]
            continue
        if kind in ("else", "elif") and around:
            _, taken = around.pop()
        else:
            taken = False
        holds = _holds(kind, condition)
        # What is unknown may be compiled, and so may the branches after it.
        around.append((not taken and holds is not False, taken or holds is True))


def _holds(kind: str, condition: str) -> bool | None:
    """Whether a condition is true in the simulator; None if that cannot be told."""
    if kind == "else":
        return True
    if kind in ("ifdef", "ifndef"):
        known = _KNOWN.get(condition.strip())
        return known if known is None or kind == "ifdef" else not known
    parts = condition.split("&&")
    found = [_holds_alone(part) for part in parts]
    if False in found:
        return False
    return None if None in found else True


def _holds_alone(part: str) -> bool | None:
    part = part.strip().strip("()")
    if part in ("0", "1"):
        return part == "1"
    if re.match(r"__CUDA_ARCH__\s*>", part):  # an undefined name counts as 0
        return False
    match = re.fullmatch(r"(!?)\s*(?:defined\s*\(?\s*)?(\w+)", part)
    known = _KNOWN.get(match[2]) if match else None
    return known if match is None or known is None or not match[1] else not known


def _blank(match: re.Match[str]) -> str:
    """A comment's line breaks, so that line numbers stay right."""
    return "\n" * match[0].count("\n")
