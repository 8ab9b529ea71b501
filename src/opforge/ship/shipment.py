# SPDX-License-Identifier: Apache-2.0
"""A wheel in the making: first without libraries, then with those that were built for it."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from opforge.build import cache
from opforge.errors import BuildError
from opforge.op import Op
from opforge.ship import audit
from opforge.ship.archive import Archive
from opforge.ship.folder import manifest_of

PREBUILT = "prebuilt"  # where load.py looks, in an op's folder


@dataclass
class Shipment:
    """The files of a wheel, and where in it each op is."""

    archive: Archive
    places: dict[Op, str]
    warnings: list[str] = field(default_factory=list)
    lists_libraries: bool = False  # in its description, which is opforge's own

    @property
    def ops(self) -> list[Op]:
        """The ops that libraries are built for."""
        return list(self.places)

    def add(self, libraries: list[cache.Library]) -> None:
        """Put libraries and their manifests beside the op.py of their ops."""
        by_name = {op.name: place for op, place in self.places.items()}
        for library in libraries:
            stem = f"{by_name[library.manifest['op']]}/{PREBUILT}/{library.path.stem}"
            self.archive.files[f"{stem}.so"] = library.path.read_bytes()
            self.archive.files[f"{stem}.json"] = manifest_of(library).encode()
        if self.lists_libraries:
            self.archive.files[f"{self.archive.info}/METADATA"] += _table(libraries).encode()

    def write(self, folder: Path) -> tuple[Path, audit.Verdict]:
        """Write the wheel; say which systems it is for."""
        with tempfile.TemporaryDirectory(prefix="opforge-") as scratch:
            verdict = audit.judge(self._unpacked(Path(scratch)))
        return self.archive.write(folder, verdict.platform), verdict

    def _unpacked(self, folder: Path) -> list[Path]:
        """All libraries, also those that a package has of its own."""
        paths = []
        for name, content in self.archive.files.items():
            if re.search(r"\.so(\.\d+)*$", name):
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                paths.append(path)
        return paths


def must_be_a_folder(place: Path) -> None:
    """``--out`` names the folder of a wheel; the wheel's own name says what it is."""
    if place.suffix == ".whl":
        raise BuildError(
            f"--out {place}: --out takes the folder for the wheel, whose name follows from its "
            f"content; use --out {place.parent}"
        )
    if place.exists() and not place.is_dir():
        raise BuildError(f"--out {place} is a file; it takes the folder for the wheel")


def _table(libraries: list[cache.Library]) -> str:
    rows = ["| target | machine | GPU architectures | key |", "|---|---|---|---|"]
    for facts in (library.manifest for library in libraries):
        target = " ".join(filter(None, (facts["target"], facts["part"])))
        gpus = ", ".join(facts["archs"]) or "–"
        rows.append(f"| {target} | {facts['machine']} | {gpus} | {facts['key'][:20]} |")
    return "\n## Compiled kernels\n\n" + "\n".join(rows) + "\n"
