# SPDX-License-Identifier: Apache-2.0
"""An op's sources for other build systems, which compile them into a Python extension module.

The module is complete in itself: it defines the schemas, registers the kernels and has them as
``forward`` and ``backward``. It knows no gradient and nothing else that opforge derives.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opforge.build import arch, cache, targets, toolchain
from opforge.build.cpu import cpu_flags
from opforge.build.generated import HEADER_NAME, module_source, signature_header
from opforge.build.parts import whole
from opforge.build.plan import INCLUDE_DIR, REGISTRATION_HEADER, STANDARD, included, reachable
from opforge.errors import BuildError, RecordError
from opforge.op import Op
from opforge.ship.exportable import must_have_its_headers, must_have_kernels
from opforge.ship.target_folder import draft_of, must_take

# What the generated source includes.
_HEADERS = [REGISTRATION_HEADER, *map(REGISTRATION_HEADER.with_name, ("module.h", "definitions.h"))]
_HIDDEN = "-fvisibility=hidden"
# torch.utils.cpp_extension turns these off for nvcc; the builder of opforge does not.
HALF_ON = [
    f"-U__CUDA_NO_{what}__"
    for what in ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS")
]


@dataclass(frozen=True)
class Sources:
    """What another build system needs to know."""

    files: tuple[Path, ...]  # what it compiles
    folders: tuple[Path, ...]  # of headers
    cxx: tuple[str, ...]  # flags for .cpp files
    nvcc: tuple[str, ...]  # flags for .cu files
    link: tuple[str, ...]


@dataclass(frozen=True)
class Kit:
    """All files for a target: those that exist, and those that are generated."""

    op: Op
    target: str
    files: tuple[Path, ...]
    headers: tuple[Path, ...]
    roots: dict[Path, str]  # folders of headers, and what an export calls them
    foreign: tuple[Path, ...]  # folders of headers in packages
    module: str  # the name of the generated source
    generated: dict[str, str]  # name -> text
    digest: str

    def in_place(self) -> Sources:
        """The files where they are; what is generated goes into a folder of the cache."""
        folder = cache.root() / "modules" / f"{self.op.name}-{self.target}-{self.digest[:20]}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, text in self.generated.items():
            if not (folder / name).exists():
                cache.replace_text(folder / name, text)
        folders = (folder, *self.roots, *self.foreign)
        return self._sources((*self.files, folder / self.module), folders)

    def relative(self) -> Sources:
        """The files by their places in an export."""
        files = [self.place(f) for f in self.files]
        folders = map(Path, (".", *self.roots.values()))
        return self._sources((*files, Path(self.module)), tuple(folders))

    def place(self, file: Path) -> Path:
        """Where an export has a file."""
        root = next(r for r in self.roots if file.is_relative_to(r))
        return Path(self.roots[root]) / file.relative_to(root)

    def _sources(self, files: tuple[Path, ...], folders: tuple[Path, ...]) -> Sources:
        goal = targets.find(self.target)
        asked = tuple(self.op.build.flags.get(goal.kind, ()))
        cxx, nvcc = [*STANDARD, "-O2", "-DNDEBUG", _HIDDEN], []
        if goal is targets.CUDA:
            nvcc = [*STANDARD, "-DUSE_CUDA", "-O3", "-DNDEBUG", f"-Xcompiler={_HIDDEN}"]
            nvcc += [*HALF_ON, *asked]
            if needed := self.op.build.archs:  # else the other build system chooses
                nvcc += arch.nvcc_flags(arch.with_needed(arch.select(), needed))
        else:
            level = toolchain.cpu_level(platform.machine(), cpu_flags())
            cxx += [*level, *asked]
        link = tuple(self.op.build.libraries.get(goal.kind, ()))
        return Sources(files, folders, tuple(cxx), tuple(nvcc), link)


def kit(op: Op, target: str) -> Kit:
    """Everything that the op's sources for a target need; raises where it has none."""
    goal = targets.find(target)
    parts = whole(op, goal)
    files = parts.all[0].sources
    if op.folder is None or not files:
        raise RecordError(f"{op.name} has no {goal.language} source ({goal.pattern})")
    _check_names(op, files)
    own, foreign = included(op, {})
    roots = {op.folder: "op", INCLUDE_DIR: "include"}
    roots |= {f: f"include_{n}" for n, f in enumerate(own, 1) if f not in roots}
    content = reachable([*files, *_HEADERS], tuple(roots))
    digest = hashlib.sha256(signature_header(op).encode())
    for path in sorted(content):
        digest.update(f"{path.name}\0{len(content[path])}\0".encode() + content[path])
    # A namespace of its own: opforge, or another version, may be loaded in the same process.
    namespace = f"{op.name}_{target}_{digest.hexdigest()[:8]}"
    module = f"opforge_{target}_module.cpp"
    generated = {
        HEADER_NAME: signature_header(op),
        module: module_source(op, goal, parts, namespace),
    }
    digest.update("".join(generated.values()).encode())
    headers = tuple(path for path in content if path not in files)
    return Kit(
        *(op, target, files, headers, roots, tuple(foreign), module, generated),
        digest=digest.hexdigest(),
    )


def kits(op: Op) -> dict[str, Kit]:
    """What an export holds: a kit for each target that the op has sources for."""
    must_have_kernels(op)
    must_have_its_headers(op)
    return {t: kit(op, t) for t in targets.FOR_USERS if targets.has_sources(op, t)}


def write(
    kits: Mapping[str, Kit], more: Mapping[str, str], folder: Path, force: bool = False
) -> None:
    """Write kits, and files of these names and texts, to a folder: all of it or nothing."""
    must_take(folder, force)
    with draft_of(folder) as draft:
        for one in kits.values():
            for path in (*one.files, *one.headers):
                place = draft / one.place(path)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, place)
            for name, text in {**one.generated, **more}.items():
                (draft / name).write_text(text, encoding="utf-8")


def _check_names(op: Op, files: tuple[Path, ...]) -> None:
    names = [file.name for file in files]
    for name in {n for n in names if names.count(n) > 1}:
        raise BuildError(
            f"{op.name} has two sources called {name}, whose objects other build systems would "
            "mix up; rename one"
        )
