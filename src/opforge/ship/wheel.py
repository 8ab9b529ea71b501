# SPDX-License-Identifier: Apache-2.0
"""Wheels with prebuilt libraries.

A wheel is tagged ``py3-none-<platform>``: its libraries know neither Python nor a torch version,
only the stable ABI. Built-in ops ship as a wheel of opforge itself; an op folder of your own
becomes a package named after the op.
"""

from __future__ import annotations

import base64
import hashlib
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

import opforge
from opforge.build import cache
from opforge.build.plan import ABI
from opforge.discover import BUILTIN_FOLDER
from opforge.errors import BuildError
from opforge.op import Op
from opforge.ship.folder import manifest_of

_SKIP = ("__pycache__", "prebuilt")


def to_wheel(ops: list[Op], libraries: list[cache.Library], folder: Path) -> Path:
    """Write one wheel that holds ``ops`` and their libraries."""
    outside = [op for op in ops if op.folder and op.folder.parent != BUILTIN_FOLDER]
    if outside and len(ops) > 1:
        raise BuildError(
            "a wheel holds the built-in ops or one op folder of your own; build them one by one"
        )
    for op in outside:
        _check_includes(op)
    folder.mkdir(parents=True, exist_ok=True)
    return (
        _own_wheel(outside[0], libraries, folder) if outside else _opforge_wheel(libraries, folder)
    )


def _check_includes(op: Op) -> None:
    """Refuse headers that whoever installs the wheel would not have."""
    assert op.folder is not None
    for one in op.build.include:
        if isinstance(one, str) and not (op.folder / one).resolve().is_relative_to(op.folder):
            raise BuildError(
                f"{op.name} includes headers from {one}, outside its folder {op.folder}, and a "
                "wheel holds the folder alone; move the headers into it"
            )


def _opforge_wheel(libraries: list[cache.Library], folder: Path) -> Path:
    package = Path(opforge.__file__).parent
    files = {f"opforge/{path.relative_to(package)}": path.read_bytes() for path in _files(package)}
    for library in libraries:
        op = library.manifest["op"]
        files |= _library_files(library, f"opforge/ops/{op}/prebuilt")
    installed = metadata.distribution("opforge")
    about = installed.read_text("METADATA") or ""
    for file in installed.files or []:
        if file.parent.name == "licenses":
            place = f"opforge-{opforge.__version__}.dist-info/licenses/{file.name}"
            files[place] = file.read_binary()
    scripts = (installed.read_text("entry_points.txt") or "").encode()
    return _write(folder, "opforge", opforge.__version__, about, files, scripts)


def _own_wheel(op: Op, libraries: list[cache.Library], folder: Path) -> Path:
    assert op.folder is not None
    files = {
        f"{op.name}/{path.relative_to(op.folder)}": path.read_bytes() for path in _files(op.folder)
    }
    for library in libraries:
        files |= _library_files(library, f"{op.name}/prebuilt")
    files[f"{op.name}/__init__.py"] = (
        f'"""{op.name}, an operator made with opforge."""\n\n'
        "from pathlib import Path\n\nimport opforge\n\n"
        f"{op.name} = opforge.load(Path(__file__).parent)\n"
    ).encode()
    about = (
        f"Metadata-Version: 2.1\nName: {op.name}\nVersion: 0.1.0\n"
        f"Summary: {op.name}, an operator made with opforge\nRequires-Python: >=3.10\n"
        f"Requires-Dist: torch>={ABI[0]}.{ABI[1]}\nRequires-Dist: opforge>={opforge.__version__}\n"
    )
    return _write(folder, op.name, "0.1.0", about, files, None)


def _files(root: Path) -> list[Path]:
    found = (p for p in sorted(root.rglob("*")) if p.is_file())
    return [p for p in found if not set(_SKIP) & set(p.relative_to(root).parts)]


def _library_files(library: cache.Library, place: str) -> dict[str, bytes]:
    stem = f"{place}/{library.path.stem}"
    manifest = manifest_of(library).encode()
    return {f"{stem}.so": library.path.read_bytes(), f"{stem}.json": manifest}


def _write(
    folder: Path,
    name: str,
    version: str,
    about: str,
    files: dict[str, bytes],
    scripts: bytes | None,
) -> Path:
    """The wheel format: the files, a .dist-info folder, and a RECORD of every digest."""
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    tag = f"py3-none-{platform}"
    info = f"{name}-{version}.dist-info"
    files = {**files, f"{info}/METADATA": about.encode()}
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: opforge {opforge.__version__}\n"
        f"Root-Is-Purelib: false\nTag: {tag}\n"
    ).encode()
    if scripts:
        files[f"{info}/entry_points.txt"] = scripts
    lines = []
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(content)}\n")
    files[f"{info}/RECORD"] = ("".join(lines) + f"{info}/RECORD,,\n").encode()
    wheel = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return wheel
