# SPDX-License-Identifier: Apache-2.0
"""Finds op folders and loads them. Built-in ops and users' ops are loaded in the same way."""

from __future__ import annotations

import copy
import hashlib
import importlib
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from opforge.errors import OpforgeError, RecordError
from opforge.op import Op, files_of
from opforge.registration.register import register
from opforge.terminal.words import did_you_mean

BUILTIN_FOLDER = Path(__file__).parent / "ops"
BUILTIN_NAMESPACE = "opforge"
# What torch says of a schema that somebody else has defined in this process.
_DEFINED_TWICE = "Tried to register an operator"
_CONTENT = ("*.py", "*.cu", "*.cuh", "*.cpp", "*.h", "*.hpp")


@dataclass(frozen=True)
class Loaded:
    """An op folder that has been loaded."""

    op: Op
    function: Callable[..., Any]
    digest: str


_lock = threading.RLock()  # reentrant, because an op.py may load other ops
_by_version: dict[tuple[Path, str], Loaded] = {}  # by folder and digest of its content
# Used pairs of namespace and name. Records that failed to register stay in it, because torch may
# crash if a name is defined again after it was removed.
_taken: set[tuple[str, str]] = set()


def builtin_names() -> list[str]:
    """Names of the built-in ops: all folders under ``ops/`` that have an ``op.py``."""
    return sorted(p.parent.name for p in BUILTIN_FOLDER.glob("*/op.py"))


def load(path: str | Path, *, watch: bool = False) -> Callable[..., Any]:
    """Load the op in a folder and return its public function.

    If the folder has changed since, this loads the new version; the old one keeps working.

    With ``watch``, every call of the function looks whether a source has changed, and loads and
    builds the new version first if so. If that fails, calls raise the error until there is another
    change. ``torch.compile`` keeps the version that it has traced.
    """
    if watch:
        from opforge.interactive.watch import Watched  # few want it

        return Watched(Path(path))
    return load_folder(Path(path)).function


def register_all() -> None:
    """Register all built-in ops with torch, which otherwise happens when one is first used.

    ``torch.export.load`` and AOTInductor find an op by its name alone, so it must be there before.
    """
    for name in builtin_names():
        load_folder(BUILTIN_FOLDER / name)


def find(name_or_path: str) -> Op:
    """The record of an op, given a built-in name or the path of a folder, as commands take it."""
    if name_or_path in builtin_names():
        return load_folder(BUILTIN_FOLDER / name_or_path).op
    if not Path(name_or_path).is_dir():
        meant = did_you_mean(name_or_path, [*builtin_names(), *_beside(name_or_path)])
        raise RecordError(
            f"{name_or_path!r} is neither a built-in op ({', '.join(builtin_names())}) "
            f"nor an op folder (a folder with an op.py){meant}"
        )
    return load_folder(Path(name_or_path)).op


def where(op: Op) -> str:
    """A string that ``find`` resolves to the op: its built-in name or its folder."""
    return op.name if op.namespace == BUILTIN_NAMESPACE else str(op.folder)


def _beside(path: str) -> list[str]:
    """Op folders in the parent folder of ``path``, as suggestions for a misspelled path."""
    return [str(p.parent) for p in Path(path).parent.glob("*/op.py")]


def record_of(op: str | Path | Op | Callable[..., Any]) -> Op:
    """The record of an op, given as a built-in name, a folder, a record or a public function."""
    if isinstance(op, Op):
        return op
    if isinstance(op, (str, Path)):
        return find(str(op))
    for known in loaded():
        if known.function in (op, getattr(op, "__wrapped__", op)):  # of a watched one, the newest
            return known.op
    raise RecordError(f"{op!r} is not the public function of a loaded op")


def function_of(op: Op) -> Callable[..., Any]:
    """The public function of a loaded record."""
    return next(known.function for known in loaded() if known.op is op)


def loaded() -> list[Loaded]:
    """All ops loaded so far."""
    return list(_by_version.values())


def load_folder(path: Path, quiet: bool = False) -> Loaded:
    """Load an op folder: import its op.py and register its record with torch.

    Unless ``quiet``, it says so if another version is loaded already.
    """
    folder = path.expanduser().resolve()
    if not folder.is_dir():
        raise RecordError(f"{path} is not a folder; an op is a folder that contains an op.py")
    if not (folder / "op.py").is_file():
        raise RecordError(
            f"{path} is not an op folder: it has no op.py; write one that contains op = Op(...)"
        )
    with _lock:
        version = folder, _digest(folder)
        if version not in _by_version:
            _by_version[version] = _load_version(*version, quiet)
        return _by_version[version]


def adopt(op: Op, folder: Path) -> None:
    """Register a record that was made in this process, and whose sources are in a folder."""
    op.folder = folder
    with _lock:
        _register(op)
        _by_version[folder, _digest(folder)] = Loaded(op, op, _digest(folder))


def is_taken(op: Op) -> bool:
    """Whether another version has the op's name in its namespace."""
    return (op.namespace, op.name) in _taken


def _load_version(folder: Path, digest: str, quiet: bool) -> Loaded:
    module, op, other_namespace = _read(folder, digest)
    if is_taken(op):
        if not quiet:
            print(
                f"opforge: another version of {op.name} is already loaded; "
                f"this one is torch.ops.{other_namespace}.{op.name}",
                file=sys.stderr,
            )
        op.namespace = other_namespace
    _register(op)
    return Loaded(op, getattr(module, op.name, op), digest)


def _register(op: Op) -> None:
    assert op.folder is not None
    _taken.add((op.namespace, op.name))
    try:
        register(op)
    except OpforgeError:
        raise
    except Exception as error:
        if _DEFINED_TWICE in str(error):
            raise RecordError(
                f"torch has an op {op.namespace}::{op.name} already, from a library for C++ "
                "programs (opforge build --cpp); load that library after the op"
            ) from None
        raise RecordError(
            f"the record in {op.folder / 'op.py'} cannot be registered with torch: "
            f"{type(error).__name__}: {error}"
        ) from error


def _read(folder: Path, digest: str) -> tuple[ModuleType, Op, str]:
    """Import an op.py. Returns its module, its record, and the namespace to register it in."""
    # The path is part of the identity, because two folders may have the same content.
    identity = hashlib.sha256(f"{folder}\0{digest}".encode(errors="surrogateescape")).hexdigest()
    module = _import(folder, identity)
    op = _the_record(module, folder)
    op.folder = folder
    if folder.parent == BUILTIN_FOLDER:
        op.namespace = BUILTIN_NAMESPACE
    elif op.namespace == BUILTIN_NAMESPACE:
        raise RecordError(
            f"{folder}: the namespace 'opforge' is reserved for built-in ops; choose another"
        )
    return module, op, f"{op.namespace}_{identity[:8]}"


def unregistered(folder: Path) -> list[Op]:
    """The record of a folder, once per namespace it may get. It is not registered or callable."""
    _, first, other_namespace = _read(folder, _digest(folder))
    second = copy.copy(first)
    second.namespace = other_namespace
    return [first, second]


def digest_of(op: Op) -> str:
    """Changes when any file of the op does."""
    assert op.folder is not None
    return _digest(op.folder)


def files(folder: Path) -> list[Path]:
    """The files that an op in a folder consists of."""
    return files_of(folder, *_CONTENT)


def _digest(folder: Path) -> str:
    state = hashlib.sha256()
    for file in files(folder):
        name = str(file.relative_to(folder)).encode(errors="surrogateescape")
        state.update(name + f"\0{file.stat().st_size}\0".encode())
        state.update(file.read_bytes())
    return state.hexdigest()


def _import(folder: Path, identity: str) -> ModuleType:
    """Import a folder's op.py as a module of a package, so that it can import its siblings."""
    inside = folder.parent == BUILTIN_FOLDER
    name = f"opforge.ops.{folder.name}" if inside else f"opforge_op_{identity[:16]}"
    before = _modules_of(name)
    for old in before:  # an older version of a built-in op, whose record stays valid
        del sys.modules[old]
    package = ModuleType(name)
    package.__path__ = [str(folder)]
    package.__spec__ = ModuleSpec(name, None, is_package=True)
    sys.modules[name] = package
    importlib.invalidate_caches()  # a new file may be too recent for importlib's cache
    try:
        return importlib.import_module(f"{name}.op")
    except Exception as error:
        for half_done in _modules_of(name):
            del sys.modules[half_done]
        sys.modules.update(before)
        raise RecordError(
            f"{folder / 'op.py'} cannot be loaded: {type(error).__name__}: {error}"
        ) from error


def _modules_of(package: str) -> dict[str, ModuleType]:
    """The imported modules of a package."""
    return {n: m for n, m in sys.modules.items() if n == package or n.startswith(f"{package}.")}


def _the_record(module: ModuleType, folder: Path) -> Op:
    records = {id(v): v for v in vars(module).values() if isinstance(v, Op)}
    if len(records) != 1:
        found = "no Op record" if not records else f"{len(records)} Op records"
        raise RecordError(f"{folder / 'op.py'} has {found}; it must make exactly one: op = Op(...)")
    return next(iter(records.values()))
