# SPDX-License-Identifier: Apache-2.0
"""What the wheel of an op folder says about itself: name, version, requirements, description.

A ``pyproject.toml`` in the folder, or in a folder above, may say it; what is not said has defaults.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

import opforge
from opforge.build.plan import ABI
from opforge.errors import RecordError
from opforge.op import Op

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_VERSION = "0.1.0"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_LICENSES = ("LICEN[CS]E*", "COPYING*", "NOTICE*")


@dataclass(frozen=True)
class About:
    """The name and the version in a wheel's file name, and the files of its .dist-info folder."""

    name: str
    version: str
    files: dict[str, bytes]


def about(op: Op) -> About:
    """What the wheel of an op folder says about itself."""
    assert op.folder is not None
    file = _pyproject(op.folder)
    said = _project(file) if file is not None else {}
    whole = said if file is not None and file.parent == op.folder else {}  # all of it is the op's
    name, version = _name(op, whole), _version(said, file)
    license, licenses = said.get("license"), _licenses(op.folder, file)
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {name}",
        f"Version: {version}",
        f"Summary: {_one_line(whole.get('description') or _summary(op))}",
        *_people(said),
        *([f"License-Expression: {license}"] if isinstance(license, str) else []),
        *(f"License-File: {path.name}" for path in licenses),
        *([f"Keywords: {','.join(whole['keywords'])}"] if whole.get("keywords") else []),
        *(f"Classifier: {text}" for text in whole.get("classifiers", ())),
        *(f"Project-URL: {label}, {url}" for label, url in said.get("urls", {}).items()),
        "Requires-Python: >=3.10",
        *(f"Requires-Dist: {text}" for text in _requirements(whole, file)),
        "Description-Content-Type: text/markdown",
    ]
    text = "\n".join(lines) + "\n\n" + _description(op, whole, name)
    files = {"METADATA": text.encode()}
    files |= {f"licenses/{path.name}": path.read_bytes() for path in licenses}
    return About(re.sub(r"[-_.]+", "_", name).lower(), version, files)


def read_toml(file: Path) -> dict[str, Any]:
    """A TOML file, or an error that names it."""
    try:
        found: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{file} cannot be read: {error}") from None
    return found


def _pyproject(folder: Path) -> Path | None:
    """The nearest pyproject.toml; not above the repository that the folder is in."""
    for place in (folder, *folder.parents):
        if (file := place / "pyproject.toml").is_file():
            return file
        if (place / ".git").exists():
            break
    return None


def _project(file: Path) -> dict[str, Any]:
    project = read_toml(file).get("project", {})
    if not isinstance(project, dict):
        raise RecordError(f"{file}: [project] must be a table")
    return project


def _name(op: Op, said: dict[str, Any]) -> str:
    name = said.get("name", op.name)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RecordError(
            f"{name!r} cannot be the name of a wheel: such a name begins and ends with a letter or "
            f"a digit. Put another one into {op.folder}/pyproject.toml: [project] name = "
            f'"{canonicalize_name(op.name).strip("-") or "my-op"}"'
        )
    return name


def _version(said: dict[str, Any], file: Path | None) -> str:
    text = str(said.get("version", DEFAULT_VERSION))
    try:
        return str(Version(text))
    except InvalidVersion:
        raise RecordError(f"{file}: {text!r} is not a version; write it like 0.1.0") from None


def _requirements(said: dict[str, Any], file: Path | None) -> list[str]:
    """The record's own requirements come first; a stricter one may follow."""
    least = [f"torch>={ABI[0]}.{ABI[1]}", f"opforge>={opforge.__version__}"]
    for text in said.get("dependencies", ()):
        try:
            Requirement(text)
        except InvalidRequirement as error:
            raise RecordError(f"{file}: dependency {text!r} is malformed: {error}") from None
    return least + [text for text in said.get("dependencies", ()) if text not in least]


def _people(said: dict[str, Any]) -> list[str]:
    """Authors with an address are one list, those without another."""
    people = [p for p in said.get("authors", ()) if isinstance(p, dict)]
    named = [p["name"] for p in people if "name" in p and "email" not in p]
    lines = [f"Author: {', '.join(named)}"] if named else []
    mails = [
        f"{p['name']} <{p['email']}>" if "name" in p else p["email"] for p in people if "email" in p
    ]
    return lines + ([f"Author-email: {', '.join(mails)}"] if mails else [])


def _licenses(folder: Path, file: Path | None) -> list[Path]:
    """License files beside the record, else beside pyproject.toml."""
    for place in dict.fromkeys((folder, file.parent if file is not None else folder)):
        if found := sorted({p for glob in _LICENSES for p in place.glob(glob) if p.is_file()}):
            return found
    return []


def _summary(op: Op) -> str:
    """As the op's page has it: from docs.toml, else the first line of op.py."""
    assert op.folder is not None
    notes = op.folder / "docs.toml"
    if notes.is_file() and (text := read_toml(notes).get("summary")):
        return str(text)
    said = ast.get_docstring(ast.parse((op.folder / "op.py").read_text(encoding="utf-8")))
    return said.splitlines()[0] if said else f"{op.name}, an operator for PyTorch made with opforge"


def _one_line(text: str) -> str:
    return " ".join(str(text).split())


def _description(op: Op, said: dict[str, Any], name: str) -> str:
    """The README, or what the record says. The wheel adds what is compiled in."""
    assert op.folder is not None
    readme = said.get("readme", "README.md")
    file = op.folder / (readme if isinstance(readme, str) else str(readme.get("file", "")))
    if file.suffix.lower() == ".md" and file.is_file():
        return file.read_text(encoding="utf-8").rstrip() + "\n"
    return (
        f"# {name}\n\n{_summary(op)}\n\n```python\nfrom {op.name} import {op.name}\n```\n\n"
        f"Schema: `{_one_line(op.schema)}`\n"
    )
