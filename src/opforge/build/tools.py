# SPDX-License-Identifier: Apache-2.0
"""Finds NVIDIA's programs: ncu, nsys, compute-sanitizer, cuobjdump, nvdisasm."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from opforge.build import toolchain
from opforge.errors import OpforgeError

REMEDY = {
    "ncu": "install Nsight Compute: it comes with the CUDA toolkit (package nsight-compute)",
    "cuobjdump": "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm",
    "nvdisasm": "pip install nvidia-cuda-nvdisasm",
}

_PACKAGED = ("cuobjdump", "nvdisasm")  # the pip packages that the remedies name


def find(name: str) -> str | None:
    """A program on PATH, in the CUDA toolkit, or in one of the pip packages that carry it."""
    if found := shutil.which(name):
        return found
    places = (folder / name for folder in _folders(name))
    return next((str(p) for p in places if p.is_file() and os.access(p, os.X_OK)), None)


def _folders(name: str) -> Iterator[Path]:
    if home := os.environ.get("CUDA_HOME"):
        yield Path(home) / "bin"
    with contextlib.suppress(OpforgeError):  # no toolkit: they may be there on their own
        yield toolchain.find_cuda().root / "bin"
    if name in _PACKAGED and (packaged := toolchain.pip_program(name)):
        yield Path(packaged).parent
    triton = importlib.util.find_spec("triton")  # comes with a torch that has CUDA
    if triton is not None and triton.origin is not None:
        yield Path(triton.origin).parent / "backends" / "nvidia" / "bin"
