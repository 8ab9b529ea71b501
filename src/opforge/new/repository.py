# SPDX-License-Identifier: Apache-2.0
"""A repository around op folders: a Python package with its tests, its CI and its pages."""

from __future__ import annotations

import keyword
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePath

import opforge
from opforge.build.plan import ABI
from opforge.errors import NewError
from opforge.new import folder, request
from opforge.new.request import Request
from opforge.terminal.words import did_you_mean

LICENSES = {"none": "", "apache-2.0": "Apache-2.0", "mit": "MIT", "bsd-3-clause": "BSD-3-Clause"}
# The package would hide these, or they hide the package.
_TAKEN = {"opforge", "torch", "pytest", *sys.stdlib_module_names}
# path in the repository -> its template
_FILES = {
    "pyproject.toml": "pyproject.toml.jinja",
    "src/{name}/__init__.py": "init.py.jinja",
    "tests/test_ops.py": "test_ops.py.jinja",
    "docs/index.md": "index.md.jinja",
    "README.md": "README.md.jinja",
    ".github/workflows/ci.yml": "ci.yml.jinja",
    ".pre-commit-config.yaml": "pre-commit-config.yaml.jinja",
    ".clang-format": "clang-format.jinja",
    ".gitignore": "gitignore.jinja",
}


@dataclass(frozen=True)
class Package:
    """A new package: its name, its first op, and a key of LICENSES."""

    name: str
    op: Request
    license: str

    @property
    def project(self) -> str:
        """What pip calls it."""
        return self.name.replace("_", "-")

    @property
    def spdx(self) -> str:
        """The licence's identifier, or an empty string."""
        return LICENSES[self.license]

    @property
    def requirements(self) -> list[str]:
        """What its code needs. Libraries of its ops load in every torch from this one on."""
        return [f"opforge>={opforge.__version__}", f"torch>={ABI[0]}.{ABI[1]}"]


def resolve(name: str, op: str | None, kind: str, schema: str | None, license: str) -> Package:
    """Check the words of a command line. Raises NewError with the fix.

    Without ``op``, the first op has the schema's name, or a name made of the package's.
    """
    _check_package_name(name)
    if license not in LICENSES:
        known = ", ".join(LICENSES)
        meant = did_you_mean(license, LICENSES)
        raise NewError(f"there is no licence text for {license!r}; licences are {known}{meant}")
    written = schema.partition("(")[0].strip() if schema else ""
    if op is not None and PurePath(op).name != op:
        raise NewError(
            f"{op!r} is a path; --op is the op's name alone, and its folder is src/{name}/NAME"
        )
    if op is not None and written and written != op:
        raise NewError(
            f"the schema names the op {written!r}, but --op is {op!r}; leave --op out, or give "
            "both the same name"
        )
    first = op or written or f"{name}_op"
    return Package(name, request.resolve(first, kind, schema), license)


def render(package: Package) -> dict[str, str]:
    """Path in the repository -> text."""
    environment = folder.environment()
    files = {}
    for path, template in _FILES.items():
        text = environment.get_template(f"package/{template}").render(package=package)
        files[path.format(name=package.name)] = text
    if package.spdx:
        files["LICENSE"] = _license(package)
    op = folder.render(package.op)
    return files | {f"{op_place(package)}/{file}": text for file, text in op.items()}


def op_place(package: Package) -> str:
    """The path of the first op's folder in the repository."""
    return f"src/{package.name}/{package.op.name}"


def write(package: Package, into: Path, force: bool = False) -> list[Path]:
    """Write the repository, and return its files. Raises NewError as for the folder of an op."""
    return folder.write_files(into / package.name, render(package), force)


def _check_package_name(name: str) -> None:
    request.check_spelling(name, "a package", "opforge new --package")
    why = "a keyword of Python" if keyword.iskeyword(name) else ""
    why = "a module that others import by this name" if name in _TAKEN else why
    if why:
        raise NewError(
            f"{name!r} cannot be the name of a package: it is {why}; another name would do, such "
            f"as {name}_ops"
        )


def _license(package: Package) -> str:
    if package.license != "apache-2.0":
        template = folder.environment().get_template(f"package/{package.license}.txt.jinja")
        return template.render(package=package)
    try:
        text = metadata.distribution("opforge").read_text("licenses/LICENSE")
    except metadata.PackageNotFoundError:
        text = None
    if text is None:
        raise NewError(
            "the text of Apache-2.0 is copied from the installed opforge, which has none here; "
            "install opforge with pip, or choose --license none and add the text yourself"
        )
    return text
