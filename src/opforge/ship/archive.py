# SPDX-License-Identifier: Apache-2.0
"""The wheel format: a zip file with a .dist-info folder and a RECORD of every file's digest."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import opforge
from opforge.errors import BuildError

_EXECUTABLE = 0o111 << 16  # in a zip file's attributes


@dataclass
class Archive:
    """The files of a wheel by their paths, without RECORD and WHEEL, which are written last."""

    name: str
    version: str
    files: dict[str, bytes]
    python_and_abi: tuple[str, ...] = ("py3-none",)  # libraries of the stable ABI know no Python
    build: str = ""
    executable: set[str] = field(default_factory=set)

    @property
    def info(self) -> str:
        """The .dist-info folder."""
        return f"{self.name}-{self.version}.dist-info"

    def write(self, folder: Path, platform: str) -> Path:
        """Write the wheel for a platform, in one step: an older one is replaced by a whole one."""
        tags = [f"{tag}-{platform}" for tag in self.python_and_abi]
        files = {k: v for k, v in sorted(self.files.items()) if not k.startswith(f"{self.info}/")}
        files |= {k: v for k, v in sorted(self.files.items()) if k not in files}
        files[f"{self.info}/WHEEL"] = (
            f"Wheel-Version: 1.0\nGenerator: opforge {opforge.__version__}\n"
            + (f"Build: {self.build}\n" if self.build else "")
            + "Root-Is-Purelib: false\n"
            + "".join(f"Tag: {tag}\n" for tag in tags)
        ).encode()
        files[f"{self.info}/RECORD"] = self._record(files).encode()
        stem = "-".join(filter(None, (self.name, self.version, self.build, _joined(tags))))
        wheel = folder / f"{stem}.whl"
        draft = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor, draft = tempfile.mkstemp(dir=folder, prefix=".", suffix=".part")
            with os.fdopen(descriptor, "wb") as out, zipfile.ZipFile(out, "w") as archive:
                for path, content in files.items():
                    entry = zipfile.ZipInfo(path)  # without a time: same files, same wheel
                    entry.external_attr = (0o100644 << 16) | (
                        _EXECUTABLE if path in self.executable else 0
                    )
                    archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
            os.chmod(draft, 0o644)  # temporary files are private
            os.replace(draft, wheel)
        except OSError as error:
            raise BuildError(f"{wheel} cannot be written: {error.strerror or error}") from None
        finally:
            if draft is not None and os.path.exists(draft):
                os.unlink(draft)
        return wheel

    def _record(self, files: dict[str, bytes]) -> str:
        lines = []
        for path, content in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            cell = f'"{path}"' if "," in path else path
            lines.append(f"{cell},sha256={digest.decode()},{len(content)}\n")
        return "".join(lines) + f"{self.info}/RECORD,,\n"


def read(wheel: Path) -> Archive:
    """What a build backend has made."""
    name, version, *rest = wheel.stem.split("-")
    with zipfile.ZipFile(wheel) as archive:
        entries = [e for e in archive.infolist() if not e.is_dir()]
        files = {e.filename: archive.read(e) for e in entries}
    made = Archive(name, version, files, build=rest[0] if len(rest) == 4 else "")
    made.executable = {e.filename for e in entries if e.external_attr & _EXECUTABLE}
    about = files.pop(f"{made.info}/WHEEL", b"").decode()
    files.pop(f"{made.info}/RECORD", None)
    tags = re.findall(r"^Tag: (\S+-\S+)-\S+$", about, re.MULTILINE)
    if not tags:
        raise BuildError(f"{wheel.name} has no .dist-info/WHEEL with tags: it is not a wheel")
    made.python_and_abi = tuple(dict.fromkeys(tags))
    return made


def _joined(tags: list[str]) -> str:
    """``py2.py3-none-any`` of ``py2-none-any`` and ``py3-none-any``."""
    columns = zip(*(tag.split("-") for tag in tags), strict=True)
    return "-".join(".".join(dict.fromkeys(column)) for column in columns)
