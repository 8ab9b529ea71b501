# SPDX-License-Identifier: Apache-2.0
"""Which of an op's kernels makes which matrix product on a GPU, as ``opforge tune`` measured it.

A table is a text with a line per product; ``include/opforge/families/product/choice.h`` reads it. A
table per GPU can ship in the op's folder, ``tuned/<gpu>.txt``. The user's own is in the cache
directory, and counts first. Without either, kernels follow a rule of thumb.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import torch

from opforge.build import cache
from opforge.errors import CacheError
from opforge.op import Op


def gpu() -> str:
    """The present GPU as a file name, such as ``nvidia-h200``; "" without one."""
    if not torch.cuda.is_available():
        return ""
    return re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name().lower()).strip("-")


def shipped(op: Op, gpu: str) -> Path:
    """The table that comes with the op."""
    assert op.folder is not None
    return op.folder / "tuned" / f"{gpu}.txt"


def own(op: Op, gpu: str) -> Path:
    """The table of this user."""
    return cache.root() / "tuned" / f"{op.namespace}.{op.name}-{gpu}.txt"


def table(op: Op) -> str:
    """Both tables for the present GPU. Of two lines for a product the first counts."""
    name = gpu()
    if not name:
        return ""
    files = [shipped(op, name)]
    with contextlib.suppress(CacheError):  # there may be no place for a cache
        files.insert(0, own(op, name))
    return "".join(file.read_text() for file in files if file.is_file())
