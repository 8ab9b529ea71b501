# SPDX-License-Identifier: Apache-2.0
"""A folder of prebuilt libraries, for OPFORGE_PREBUILT."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from opforge.build import cache


def to_folder(libraries: Iterable[cache.Library], folder: Path) -> list[Path]:
    """Copy libraries and their manifests to ``folder``; returns the libraries' paths."""
    folder.mkdir(parents=True, exist_ok=True)
    placed = []
    for library in libraries:
        target = folder / library.path.name
        shutil.copy2(library.path, target)
        target.with_suffix(".json").write_text(manifest_of(library))
        placed.append(target)
    return placed


def manifest_of(library: cache.Library) -> str:
    """What goes along with a library; nobody else has the folder that it was built from."""
    facts = {k: v for k, v in library.manifest.items() if k != cache.SOURCE_FOLDER}
    return json.dumps(facts, indent=1, sort_keys=True)
