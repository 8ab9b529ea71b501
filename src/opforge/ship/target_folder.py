# SPDX-License-Identifier: Apache-2.0
"""Writes a folder, all of it or nothing, and never over something else without being asked."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from opforge.errors import BuildError


def must_take(folder: Path, force: bool) -> None:
    """Raise unless ``folder`` is new or empty, or files in it may be replaced."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise BuildError(f"{folder} is no folder; choose another place with --out")
    if not force and folder.is_dir() and any(folder.iterdir()):
        raise BuildError(
            f"{folder} is not empty; choose another place with --out, or replace what is in it "
            "with --force"
        )


@contextlib.contextmanager
def draft_of(folder: Path, whole: str = "") -> Iterator[Path]:
    """A folder beside ``folder``, whose files are moved there at the end, if nothing failed.

    Other files in ``folder`` stay, except those in its subfolder ``whole``, which is replaced.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
            draft = Path(scratch, "new")
            draft.mkdir()
            yield draft
            if not folder.exists():
                os.replace(draft, folder)
                return
            if whole and (folder / whole).exists():
                os.replace(folder / whole, Path(scratch, "old"))
            if whole:
                os.replace(draft / whole, folder / whole)
            for file in sorted(p for p in draft.rglob("*") if p.is_file()):
                place = folder / file.relative_to(draft)
                place.parent.mkdir(parents=True, exist_ok=True)
                os.replace(file, place)
    except OSError as error:
        raise BuildError(f"{folder} cannot be written: {error.strerror or error}") from None
