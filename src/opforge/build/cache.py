# SPDX-License-Identifier: Apache-2.0
"""The build cache: content-addressed, atomic, private to its user.

``<root>/libs/<op>-<target>-<key>/`` holds one library and its manifest. It appears by a rename and
is never changed afterwards; a digest in the manifest is verified before every load.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opforge import settings
from opforge.errors import CacheError

SAY_WAITING_AFTER = 10.0  # seconds
# In a manifest: the op folder, so that prune can tell what is in use. Not in what is shipped.
SOURCE_FOLDER = "source_folder"
# What every manifest has.
_FACTS = {"library", "sha256", "size", "created", "op", "target", "abi", "machine", "archs"}
_FACTS |= {"cpu_flags", "ingredients"}


@dataclass(frozen=True)
class Library:
    """A built library and what its manifest says of it."""

    path: Path
    manifest: dict[str, Any]

    @property
    def folder(self) -> Path:
        """Its place in the cache."""
        return self.path.parent


def root() -> Path:
    """The cache directory, created if necessary; raises CacheError if none is usable."""
    if chosen := settings.explicit_cache_dir():
        return _usable(chosen.absolute(), "OPFORGE_CACHE_DIR")
    reasons = []
    for default in (settings.default_cache_dir, _fallback):
        try:
            return _usable(default(), "the default cache directory")
        except RuntimeError as error:  # a CacheError, or platformdirs' own where there is no home
            reasons.append(str(error))
    raise CacheError(
        f"no usable cache directory: {'; '.join(reasons)}. Set OPFORGE_CACHE_DIR to a private, "
        "writable directory on a file system that allows execution"
    )


def _fallback() -> Path:
    return Path(tempfile.gettempdir()) / f"opforge-{os.getuid()}"


def _usable(place: Path, origin: str) -> Path:
    remedy = "set OPFORGE_CACHE_DIR to a directory of your own"
    if not place.is_absolute():  # "~", which older platformdirs leave where there is no home
        raise CacheError(f"{origin} {place} needs a home directory, and {_me()} has none; {remedy}")
    try:
        if not place.is_symlink():
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = place.lstat()
    except OSError as error:
        raise CacheError(
            f"{origin} {place} cannot be created: {error.strerror}; {remedy}"
        ) from None
    if stat.S_ISLNK(status.st_mode):
        raise CacheError(f"{origin} {place} is a symbolic link; {remedy}")
    if not stat.S_ISDIR(status.st_mode):
        raise CacheError(f"{origin} {place} is not a directory; {remedy}")
    if status.st_uid != os.geteuid():
        raise CacheError(
            f"{origin} {place} belongs to uid {status.st_uid}, not to {_me()}: "
            f"its owner could replace the libraries; {remedy}"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CacheError(
            f"{origin} {place} is writable by others (mode {stat.S_IMODE(status.st_mode):o}); "
            f"run chmod 700 on it, or {remedy}"
        )
    if not os.access(place, os.W_OK | os.X_OK):
        raise CacheError(f"{origin} {place} is not writable by {_me()}; {remedy}")
    flags = os.statvfs(place).f_flag
    if flags & os.ST_RDONLY:
        raise CacheError(f"{origin} {place} is on a read-only file system; {remedy}")
    if flags & os.ST_NOEXEC:
        raise CacheError(f"{origin} {place} is on a file system mounted noexec; {remedy}")
    return place


def _me() -> str:
    try:
        return f"{getpass.getuser()} (uid {os.geteuid()})"
    except (KeyError, OSError):
        return f"uid {os.geteuid()}"


def entry_dir(entry: str) -> Path:
    """Where an entry is kept, whether it exists or not."""
    return root() / "libs" / entry


def inline_root() -> Path:
    """Where the folders of ops are that were made from strings."""
    folder = root() / "inline"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def log_path(name: str) -> Path:
    """Where the log of the last failed build of ``name`` is kept."""
    folder = root() / "logs"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{name}.log"


def lookup(entry: str, repair: bool = False) -> Library | None:
    """A verified library, or None where there is none or a damaged one.

    With ``repair`` a damaged entry is removed. Only the holder of its lock may ask for that: anyone
    else could remove what another process has just built.
    """
    folder = entry_dir(entry)
    if not folder.is_dir():
        return None
    try:
        return read(folder / "manifest.json")
    except CacheError as error:
        if repair:
            print(f"opforge: {error}; building it again", file=sys.stderr)
            shutil.rmtree(folder, ignore_errors=True)
        return None


def read(manifest_path: Path) -> Library:
    """The library a manifest describes, its digest verified."""
    try:
        manifest = json.loads(manifest_path.read_text())
        if lacking := _FACTS - set(manifest):
            raise ValueError(f"the manifest has no {', '.join(sorted(lacking))}")
        manifest.setdefault("part", "")  # older ones have no parts
        path = manifest_path.parent / manifest["library"]
        content = path.read_bytes()
    except (OSError, ValueError, TypeError) as error:
        raise CacheError(f"{manifest_path.parent} is incomplete ({error})") from None
    if hashlib.sha256(content).hexdigest() != manifest["sha256"]:
        raise CacheError(f"{path} does not match the digest in its manifest")
    return Library(path, manifest)


def entries() -> list[Library]:
    """Everything in the cache, newest first; damaged entries are left out."""
    found = []
    for manifest in (root() / "libs").glob("*/manifest.json"):
        with contextlib.suppress(CacheError):
            found.append(read(manifest))
    return sorted(found, key=lambda lib: lib.manifest["created"], reverse=True)


def store(staged: Path, entry: str, library: str, facts: dict[str, Any]) -> Library:
    """Move a finished build into place: fsync, digest, one rename."""
    content = (staged / library).read_bytes()
    manifest = {
        **facts,
        "library": library,
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
        "created": time.time(),
    }
    (staged / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True))
    for name in (library, "manifest.json", "."):
        _fsync(staged / name)
    place = entry_dir(entry)
    if place.exists():  # damaged again since lookup(repair=True): we hold its lock
        shutil.rmtree(place)
    os.replace(staged, place)
    _fsync(place.parent)
    return Library(place / library, manifest)


def replace_text(path: Path, text: str) -> None:
    """Write a file in one step: a reader sees the old text or the new one, never a part."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as out:
            out.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def staging(entry: str) -> Iterator[Path]:
    """A directory beside the final one to build in; gone afterwards unless it was moved into place.

    Only the lock's holder builds an entry, so what an earlier, killed build left is swept away.
    """
    libs = root() / "libs"
    libs.mkdir(mode=0o700, exist_ok=True)
    for stale in libs.glob(f".{entry}.*"):
        shutil.rmtree(stale, ignore_errors=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{entry}.", dir=libs))
    try:
        yield staged
    finally:
        shutil.rmtree(staged, ignore_errors=True)


@contextlib.contextmanager
def lock(entry: str) -> Iterator[None]:
    """Allow one builder per entry. The operating system releases the lock of a killed process."""
    from filelock import FileLock, Timeout  # not needed, and not imported, to load what is there

    folder = root() / "locks"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{entry}.lock"
    holder = folder / f"{entry}.holder"
    limit = settings.lock_timeout()
    guard = FileLock(path)
    try:
        guard.acquire(timeout=min(SAY_WAITING_AFTER, limit))
    except Timeout:
        if limit > SAY_WAITING_AFTER:
            print(f"opforge: waiting for {_describe(holder)} on {path}", file=sys.stderr)
        try:
            guard.acquire(timeout=max(0.0, limit - SAY_WAITING_AFTER))
        except Timeout:
            raise CacheError(
                f"gave up after {limit:g} s waiting for {_describe(holder)}, which holds {path}. "
                "If it hangs, end that process; OPFORGE_LOCK_TIMEOUT sets the limit in seconds"
            ) from None
    try:
        with contextlib.suppress(OSError):  # a full disk: waiting processes get a poorer message
            holder.write_text(str(os.getpid()))
        yield
    finally:
        holder.unlink(missing_ok=True)
        guard.release()


def _describe(holder: Path) -> str:
    try:
        pid = holder.read_text()
    except OSError:
        pid = ""
    return f"process {pid}" if pid else "another process"


def prune_inline(older_than: float) -> None:
    """Remove the folders of ops made from strings that were last used so many seconds ago."""
    for folder in inline_root().iterdir():
        if time.time() - folder.stat().st_mtime >= older_than:
            shutil.rmtree(folder, ignore_errors=True)


def prune(keep: set[str], older_than: float | None = None) -> tuple[int, int]:
    """Remove entries not in ``keep`` (and older than so many seconds); returns (count, bytes).

    The staging directory of a killed build goes too; that of a running one stays.
    """
    removed = freed = 0
    libs = root() / "libs"
    for folder in libs.glob("*") if libs.is_dir() else []:
        if folder.name in keep or (folder.name.startswith(".") and _is_being_built(folder)):
            continue
        if older_than is not None and time.time() - folder.stat().st_mtime < older_than:
            continue
        freed += sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
        shutil.rmtree(folder, ignore_errors=True)
        removed += 1
    return removed, freed


def _is_being_built(staged: Path) -> bool:
    from filelock import FileLock, Timeout

    entry = staged.name[1:].rpartition(".")[0]
    guard = FileLock(root() / "locks" / f"{entry}.lock")
    try:
        guard.acquire(timeout=0)
    except Timeout:
        return True
    guard.release()
    return False
