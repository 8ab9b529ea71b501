# SPDX-License-Identifier: Apache-2.0
"""Finds what the simulator does not have, before a compiler says so in its own words."""

from __future__ import annotations

import re
from pathlib import Path

from opforge.errors import NotSimulated

# What to look for, how it is called, and what to do. The first that matches a line is named.
_CONSTRUCTS = [
    (r"\bwgmma\b", "wgmma", "tensor-core kernels run on a GPU only"),
    (r"\b(?:mma\.sync|wmma|tcgen05)\b", "tensor-core instructions", "they run on a GPU only"),
    (r"#\s*include\s*<cu(?:te|tlass)/", "CUTLASS", "kernels built on it run on a GPU only"),
    (r"<<<", "<<<…>>>", "launch through opforge::launch"),
    (r"\b__shared__\b", "a bare __shared__", "take shared memory from opforge::shared<Struct>()"),
    (r"\bcp\.async\b|\b__pipeline_", "asynchronous copies", "not there yet"),
    (r"\bmbarrier\b", "mbarriers", "not there yet"),
    (r"__cluster_dims__|\bcluster_group\b", "clusters", "not there yet"),
    (r"\basm\s*(?:volatile\s*)?\(|\b__asm__\b", "inline PTX", "give it a plain C++ twin"),
    (r"\bcooperative_groups\b", "cooperative groups", "use the warp and block intrinsics"),
    (r"#\s*include\s*<cu(?:da/|b/|rand|blas|dnn|fft|sparse)", "a CUDA library", "not there"),
    (r"\btexture<|\btex[123]D", "textures", "not there"),
]
_PATTERNS = [(re.compile(pattern), name, advice) for pattern, name, advice in _CONSTRUCTS]
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def check(folder: Path) -> None:
    """Raise for the first construct in the folder's CUDA sources that cannot be simulated."""
    for file in sorted([*folder.glob("*.cu"), *folder.glob("*.cuh")]):
        text = _COMMENT.sub(_blank, file.read_text(errors="replace"))
        for number, line in enumerate(text.splitlines(), 1):
            for pattern, name, advice in _PATTERNS:
                if pattern.search(line):
                    raise NotSimulated(f"not simulated: uses {name} ({file}:{number}); {advice}")


def _blank(match: re.Match[str]) -> str:
    """A comment's line breaks, so that line numbers stay right."""
    return "\n" * match[0].count("\n")
