# SPDX-License-Identifier: Apache-2.0
"""The wheel of a Python project whose package holds op folders.

The project's own build backend makes a wheel as always. The libraries of the ops in it are then put
beside their op.py, and the wheel gets the tag of the systems that they load on.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.requirements import Requirement

from opforge import discover
from opforge.errors import BuildError
from opforge.op import Op, files_of
from opforge.ship import archive
from opforge.ship.archive import Archive
from opforge.ship.metadata import read_toml
from opforge.ship.shipment import Shipment

_SOURCES = ("*.py", "*.cpp", "*.cu", "*.cuh", "*.h", "*.hpp")
_ELSEWHERE = {"build", "dist", "node_modules", "site-packages"}  # no sources of the project


def is_project(path: Path) -> bool:
    """Whether a path names a Python project. An op folder may have a pyproject.toml as well."""
    return (path / "pyproject.toml").is_file() and not (path / "op.py").is_file()


def shipment_of(folder: Path) -> Shipment:
    """The wheel that the project's backend makes, and the ops in it."""
    folder = folder.resolve()
    read_toml(folder / "pyproject.toml")
    with tempfile.TemporaryDirectory(prefix="opforge-") as scratch:
        wheel = archive.read(_by_backend(folder, Path(scratch)))
    places = _ops(folder, wheel)
    warnings = [text for op, place in places.items() if (text := _lacking(wheel, op, place))]
    text = wheel.files.get(f"{wheel.info}/METADATA", b"").decode()
    required = re.findall(r"^Requires-Dist: (.+)$", text, re.MULTILINE)
    needs = [r for r in map(Requirement, required) if not r.marker or "extra" not in str(r.marker)]
    if "opforge" not in {one.name for one in needs}:
        warnings.append(
            "warning: the wheel does not require opforge; name it in the dependencies of "
            f"{folder / 'pyproject.toml'}"
        )
    return Shipment(wheel, places, warnings)


def _lacking(wheel: Archive, op: Op, place: str) -> str:
    """A warning if the backend has left out sources of an op, as some do by default."""
    assert op.folder is not None
    names = [str(path.relative_to(op.folder)) for path in files_of(op.folder, *_SOURCES)]
    absent = [name for name in names if f"{place}/{name}" not in wheel.files]
    if not absent:
        return ""
    return (
        f"warning: the wheel lacks {', '.join(absent)} of {op.name}, so it runs on no other GPU "
        "or CPU than those it is built for; add such files to the package data in pyproject.toml"
    )


def _by_backend(folder: Path, scratch: Path) -> Path:
    """The wheel that the project's backend makes; it must be installed, nothing is downloaded."""
    options = ["--no-deps", "--no-build-isolation"]
    command = [sys.executable, "-m", "pip", "wheel", *options, "--disable-pip-version-check"]
    command += ["--wheel-dir", str(scratch), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    made = list(scratch.glob("*.whl"))
    if done.returncode != 0 or len(made) != 1:
        said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [x for x in said if re.search(r"error|cannot|no module", x, re.IGNORECASE)]
        why = next(iter(errors[::-1] + said[::-1]), "pip printed nothing")
        raise BuildError(
            f"the wheel of {folder} cannot be built: {why}. Install pip and the build backend that "
            f"its pyproject.toml names, and see that this works: pip wheel {' '.join(options)} "
            f"{folder}"
        )
    return made[0]


def _ops(folder: Path, wheel: Archive) -> dict[Op, str]:
    records = [
        path
        for path, content in sorted(wheel.files.items())
        if path.endswith("/op.py") and re.search(rb"\bopforge\b", content)
    ]
    if not records:
        raise BuildError(
            f"the wheel of {folder} holds no op folder (a folder with an op.py that makes an Op); "
            "put one into the package, or name an op folder itself"
        )
    places: dict[Op, str] = {}
    for path in records:
        op = discover.find(str(_source(folder, path, wheel.files[path]).parent))
        if op.name in {other.name for other in places}:
            raise BuildError(f"{folder} has two ops called {op.name}; rename one")
        places[op] = path.rpartition("/")[0]
    return places


def _source(folder: Path, path: str, content: bytes) -> Path:
    """The file of the project that a file of its wheel comes from."""
    for found in sorted(folder.rglob("op.py")):
        inside = found.relative_to(folder)
        foreign = any(p in _ELSEWHERE or p.startswith(".") for p in inside.parts)
        same = f"/{inside.as_posix()}".endswith(f"/{path}") and not foreign
        if same and found.read_bytes() == content:
            return found
    raise BuildError(
        f"the wheel of {folder} has {path}, but the project has no such file with this content, so "
        "it is unknown what to compile; is a folder build/ of an earlier build in the way?"
    )
