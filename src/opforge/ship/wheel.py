# SPDX-License-Identifier: Apache-2.0
"""Wheels with prebuilt libraries.

A wheel is tagged ``py3-none-manylinux_…``: its libraries know neither Python nor a torch version,
only the stable ABI, and ``audit.py`` says which systems they load on. Built-in ops ship as a wheel
of opforge itself; an op folder becomes a package named after the op; ``project.py`` is for packages
that hold op folders.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import opforge
from opforge.discover import BUILTIN_FOLDER
from opforge.errors import BuildError
from opforge.op import Op, files_of
from opforge.ship import project
from opforge.ship.archive import Archive
from opforge.ship.metadata import about
from opforge.ship.shipment import PREBUILT, Shipment, must_be_a_folder
from opforge.terminal.options import records_of

_SKIP = ("__pycache__", PREBUILT)


def prepare(names: list[str] | None, folder: Path) -> Shipment:
    """What a wheel of these ops, or of this project, will hold besides the libraries.

    It raises what would keep the wheel from being written, before anything is compiled.
    """
    must_be_a_folder(folder)
    projects = [Path(name) for name in names or () if project.is_project(Path(name))]
    if projects and len(names or ()) > 1:
        raise BuildError(f"a wheel holds one project; build {projects[0]} by itself")
    return project.shipment_of(projects[0]) if projects else _shipment_of(records_of(names))


def _shipment_of(ops: list[Op]) -> Shipment:
    outside = [op for op in ops if op.folder and op.folder.parent != BUILTIN_FOLDER]
    if outside and len(ops) > 1:
        raise BuildError(
            "a wheel holds the built-in ops or one op folder of your own; build them one by one, "
            "or the Python project that holds them"
        )
    if outside:
        _check_includes(outside[0])
        return Shipment(_of_op_folder(outside[0]), {outside[0]: outside[0].name}, [], True)
    return Shipment(_of_opforge(), {op: f"opforge/ops/{op.name}" for op in ops})


def _check_includes(op: Op) -> None:
    """Refuse headers that whoever installs the wheel would not have."""
    assert op.folder is not None
    for one in op.build.include:
        if isinstance(one, str) and not (op.folder / one).resolve().is_relative_to(op.folder):
            raise BuildError(
                f"{op.name} includes headers from {one}, outside its folder {op.folder}, and a "
                "wheel holds the folder alone; move the headers into it"
            )


def _of_opforge() -> Archive:
    package = Path(opforge.__file__).parent
    files = {f"opforge/{path.relative_to(package)}": path.read_bytes() for path in _files(package)}
    made = Archive("opforge", opforge.__version__, files)
    try:
        installed = metadata.distribution("opforge")
    except metadata.PackageNotFoundError:
        raise BuildError(
            "opforge itself is not installed, and the wheel takes its metadata from there; run "
            "pip install --editable in its repository"
        ) from None
    for name in ("METADATA", "entry_points.txt"):
        files[f"{made.info}/{name}"] = (installed.read_text(name) or "").encode()
    for file in installed.files or []:
        if file.parent.name == "licenses":
            files[f"{made.info}/licenses/{file.name}"] = file.read_binary()
    return made


def _files(root: Path) -> list[Path]:
    found = (p for p in sorted(root.rglob("*")) if p.is_file())
    return [p for p in found if not set(_SKIP) & set(p.relative_to(root).parts)]


def _of_op_folder(op: Op) -> Archive:
    assert op.folder is not None
    said = about(op)
    files = {
        f"{op.name}/{path.relative_to(op.folder)}": path.read_bytes()
        for path in files_of(op.folder, "*")
        if path.name != "pyproject.toml" and not path.name.startswith(".")
    }
    if not files.get(f"{op.name}/__init__.py", b"").strip():
        files[f"{op.name}/__init__.py"] = (
            f'"""{op.name}, an operator made with opforge."""\n\n'
            "from pathlib import Path\n\nimport opforge\n\n"
            f"{op.name} = opforge.load(Path(__file__).parent)\n"
        ).encode()
    made = Archive(said.name, said.version, files)
    files |= {f"{made.info}/{name}": content for name, content in said.files.items()}
    return made
