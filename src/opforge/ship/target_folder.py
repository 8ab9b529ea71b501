# SPDX-License-Identifier: Apache-2.0
"""Writes files into a folder that may hold something else: never over it without being asked."""

from __future__ import annotations

import os
from pathlib import Path

from opforge.errors import OpforgeError


def must_take(folder: Path, force: bool) -> None:
    """Raise unless ``folder`` is new or empty, or files in it may be replaced."""
    if folder.exists() and not folder.is_dir():
        raise OpforgeError(f"{folder} is a file; --out takes a folder")
    if not force and folder.is_dir() and any(folder.iterdir()):
        raise OpforgeError(
            f"{folder} is not empty; choose another folder, or replace files in it with --force"
        )


def put(staged: Path, folder: Path) -> None:
    """Move finished files to where they belong. Other files in ``folder`` stay."""
    for file in sorted(p for p in staged.rglob("*") if p.is_file()):
        place = folder / file.relative_to(staged)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, place)
