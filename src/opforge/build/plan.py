# SPDX-License-Identifier: Apache-2.0
"""``plan(op, target, part)``: what would be compiled, how, and under which key. It runs nothing."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import torch

import opforge
from opforge import settings
from opforge.build import targets, toolchain
from opforge.build.generated import registration_source, signature_header
from opforge.build.parts import BASE, parts_of
from opforge.errors import RecordError, ToolchainError
from opforge.op import Op, PackageHeaders

ABI = (2, 10)  # the LibTorch stable ABI every library is built for
# What every source of an op is compiled with.
STANDARD = ("-std=c++20", f"-DTORCH_TARGET_VERSION=0x{ABI[0]:02x}{ABI[1]:02x}000000000000")
_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)
INCLUDE_DIR = Path(__file__).parent.parent / "include"
REGISTRATION_HEADER = INCLUDE_DIR / "opforge" / "host" / "registration.h"
OLDER_SYSTEMS_HEADER = REGISTRATION_HEADER.with_name("older_systems.h")
# What a library does not use of the latter is left out. (They say so to compiler and linker.)
ONLY_WHAT_IS_USED = ("-ffunction-sections", "-Wl,--gc-sections")
COVERAGE_DIR = Path(__file__).parent.parent / "truth" / "coverage"
OP_SOURCES, OPFORGE_SOURCES = "/op", "/opforge"  # what their debug information calls the folders


@dataclass(frozen=True)
class Plan:
    """One library to build. It is complete: the compiler runs these commands and nothing else."""

    op: str
    target: str
    sources: tuple[Path, ...]
    compile: tuple[str, ...]  # followed by: -o OBJECT SOURCE
    link: tuple[str, ...]  # followed by: -o LIBRARY OBJECTS
    signature: str  # the generated header
    archs: tuple[str, ...]
    cpu_flags: tuple[str, ...]  # what the CPU must have to run it
    memory_per_job: int  # bytes a compile job may take
    ingredients: dict[str, str] = field(repr=False)  # what the key is made of, by name
    warning: str | None = None
    part: str = BASE
    registration: str = ""  # the generated source
    compile_registration: tuple[str, ...] = ()  # followed by: -o OBJECT SOURCE
    stub: str = ""  # a library that is linked as an empty one
    roots: tuple[Path, ...] = ()  # the folders that the op's own sources and headers are in

    @property
    def folder(self) -> Path:
        """Where the op is, or the library of opforge's own."""
        return self.roots[0] if self.roots else self.sources[0].parent

    @property
    def goal(self) -> targets.Target | None:
        """What it is built for; None for some libraries of opforge's own."""
        return targets.ALL.get(self.target)

    @functools.cached_property
    def key(self) -> str:
        """It changes when anything changes that could change the library."""
        return hashlib.sha256(json.dumps(self.ingredients, sort_keys=True).encode()).hexdigest()

    @property
    def stem(self) -> str:
        """The file name of the library without its suffix."""
        return stem(self.op, self.target, self.part)

    @property
    def entry(self) -> str:
        """The name of its place in the cache."""
        return f"{self.stem}-{self.key[:20]}"

    @property
    def library(self) -> str:
        """The file name of the library."""
        return f"{self.stem}.so"

    @property
    def facts(self) -> dict[str, object]:
        """What a manifest says about the library."""
        return {
            "op": self.op,
            "target": self.target,
            "part": self.part,
            "key": self.key,
            "abi": list(ABI),
            "machine": platform.machine(),
            "archs": list(self.archs),
            "cpu_flags": list(self.cpu_flags),
            "built_with": self.ingredients["compiler"],
            "opforge": opforge.__version__,
            "ingredients": self.ingredients,
        }


def stem(op: str, target: str, part: str = BASE) -> str:
    """What the file of a part's library is called, without its suffix."""
    return "-".join(filter(None, (op, target, part)))


def plan_all(op: Op, target: str, archs: str | None = None) -> list[Plan]:
    """The plans of all parts of ``op`` for a target, the base first."""
    return [plan(op, target, archs, part.name) for part in parts_of(op, targets.find(target)).all]


def plan(op: Op, target: str, archs: str | None = None, part: str = BASE) -> Plan:
    """The plan for a part of ``op``, by its name, for a target (see targets.py)."""
    goal = targets.find(target)
    if op.folder is None:
        raise RecordError(f"{op.name} is not loaded from a folder")
    if not goal.sources(op):
        what = f"{goal.language} source ({goal.pattern})"
        raise RecordError(f"{op.name} has no {what} in {op.folder}")
    parts = parts_of(op, goal)
    mine = parts.find(part)
    tools = goal.tools(op, archs)
    signature = signature_header(op)
    flags = [
        *STANDARD,
        f"-DOPFORGE_NAMESPACE={goal.namespace(op)}",
        f"-DOPFORGE_DISPATCH_KEY={goal.dispatch_key}",
    ]
    asked = op.build.flags.get(goal.kind, ())  # what a check's build is compiled with comes last
    flags += [*tools.flags, *asked] if goal.for_users else [*asked, *tools.flags]
    if mine.dtype:
        flags.append(f"-DOPFORGE_DTYPE={mine.dtype}")
    libraries = [*tools.libraries, *op.build.libraries.get(goal.kind, ())]
    generated_from = [REGISTRATION_HEADER]
    sections: tuple[str, ...] = ()
    if goal.for_users:
        generated_from.append(OLDER_SYSTEMS_HEADER)
        sections = ONLY_WHAT_IS_USED[:1]
        libraries += ONLY_WHAT_IS_USED
    identity = dict(tools.identity)
    own, foreign = included(op, identity)
    folders = [*tools.folders, INCLUDE_DIR, op.folder, *own]
    includes = [f"-I{p}" for p in (*folders, ".")]
    for folder in (*foreign, _torch_dir() / "include"):  # whose warnings are not the op's
        includes += ["-isystem", str(folder)]
    if goal.covers:  # a library may have been built from another checkout
        places = {OP_SOURCES: op.folder, OPFORGE_SOURCES: INCLUDE_DIR}
        includes += [f"-fdebug-prefix-map={folder}={name}" for name, folder in places.items()]
        identity["names of sources"] = " ".join(places)
    registration = registration_source(op, goal, parts, mine, stem(op.name, target))
    link = [tools.linker.path, "-shared", "-Wl,--no-as-needed", f"-L{_torch_dir() / 'lib'}"]
    ingredients = {
        "opforge": opforge.__version__,
        "torch": torch.__version__,
        "stable ABI": ".".join(map(str, ABI)),
        "compiler": tools.compiler.identity,
        **identity,
        "flags": " ".join(flags),
        "link": " ".join(libraries),
        "architectures": " ".join(tools.archs),
        "machine": platform.machine(),
        "signature": signature_digest(op),
        "registration": hashlib.sha256(registration.encode()).hexdigest(),
        **_digests(mine.sources, (op.folder, *folders), generated_from),
    }
    return Plan(
        op=op.name,
        target=target,
        sources=mine.sources,
        compile=(tools.compiler.path, "-c", *flags, *includes),
        link=(*link, *libraries),
        signature=signature,
        archs=tools.archs,
        cpu_flags=tools.cpu_flags,
        memory_per_job=tools.memory_per_job,
        ingredients=ingredients,
        warning=tools.warning,
        part=part,
        registration=registration,
        compile_registration=(
            *(tools.linker.path, "-c", "-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden"),
            *sections,
            *(f"-I{INCLUDE_DIR}", "-isystem", str(_torch_dir() / "include")),
        ),
        stub=tools.stub,
        roots=(op.folder, INCLUDE_DIR),
    )


def included(op: Op, identity: dict[str, str]) -> tuple[list[Path], list[Path]]:
    """The folders of headers that the record names: its own, and those of packages.

    The key has every reachable header of its own. A package may have thousands of headers, so the
    key has the package's version, which goes into ``identity`` under its name.
    """
    assert op.folder is not None
    own: list[Path] = []
    foreign: list[Path] = []
    for one in op.build.include:
        if isinstance(one, PackageHeaders):
            try:
                package = metadata.distribution(one.distribution)
            except metadata.PackageNotFoundError:
                raise ToolchainError(
                    f"{op.name} needs the headers of {one.distribution}, which is not installed; "
                    f"run: pip install {one.distribution}"
                ) from None
            identity[f"package {one.distribution}"] = package.version
            folder = Path(str(package.locate_file(one.path)))
        else:
            folder = (op.folder / one).resolve()
        if not folder.is_dir():
            raise RecordError(f"{op.name} includes {folder}, which is not a folder")
        (foreign if isinstance(one, PackageHeaders) else own).append(folder)
    return own, foreign


def plan_simulator() -> Plan:
    """The simulator's runtime: one library that all kinds of simulated ops call."""
    _demand_x86("the simulator runs on")
    runtime = targets.SIM_DIR / "runtime"
    return _plan_library(
        "simulator",
        targets.SIM.name,
        sorted(runtime.glob("*.cpp")),
        (runtime, targets.SIM_INCLUDE_DIR),
        flags=["-g1"],
        includes=[f"-I{targets.SIM_INCLUDE_DIR}"],
        libraries=["-ldl", "-lpthread", "-lrt"],
    )


def plan_guard() -> Plan:
    """The library that puts tensors against inaccessible pages, for checks on this machine."""
    _demand_x86("guard pages need")
    folder, runtime = targets.SIM_DIR.parent / "truth" / "guard", targets.SIM_DIR / "runtime"
    return _plan_library(
        "guard",
        "check",
        [*sorted(folder.glob("*.cpp")), runtime / "symbols.cpp"],
        (folder, runtime),
        includes=[f"-I{_torch_dir() / 'include'}"],
        libraries=[f"-L{_torch_dir() / 'lib'}", "-lc10", "-ldl"],
        torch=torch.__version__,  # it is built for torch's C++ headers, not for the stable ABI
    )


def plan_recorder() -> Plan:
    """The library that builds with coverage call; it records blocks and comparisons."""
    sources = [COVERAGE_DIR / "recorder.cpp"]
    return _plan_library("recorder", "cover", sources, (COVERAGE_DIR,))


def _demand_x86(what: str) -> None:
    if platform.machine() != "x86_64":
        raise ToolchainError(f"{what} x86-64, but this machine is {platform.machine()}")


def _plan_library(
    name: str,
    target: str,
    sources: list[Path],
    roots: tuple[Path, ...],
    flags: Sequence[str] = (),
    includes: Sequence[str] = (),
    libraries: Sequence[str] = (),
    **identity: str,
) -> Plan:
    """A library of opforge for checks on this machine. It belongs to no op."""
    cxx = toolchain.find_cxx()
    every = ["-std=c++20", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", *flags]
    every += ["-O0", "-g"] if settings.debug() else ["-O2"]
    return Plan(
        op=name,
        target=target,
        sources=tuple(sources),
        compile=(cxx.path, "-c", *every, *includes),
        link=(cxx.path, "-shared", *libraries),
        signature="",
        archs=(),
        cpu_flags=(),
        memory_per_job=1 << 30,
        ingredients={
            "opforge": opforge.__version__,
            "compiler": cxx.identity,
            "flags": " ".join(every),
            "machine": platform.machine(),
            **identity,
            **_digests(tuple(sources), roots),
        },
    )


def signature_digest(op: Op) -> str:
    """A digest of the C++ signatures that the record's schemas promise."""
    return hashlib.sha256(signature_header(op).encode()).hexdigest()


def reachable(files: Sequence[Path], roots: tuple[Path, ...]) -> dict[Path, bytes]:
    """The files, and every header that they reach inside ``roots``, with their content."""
    found: dict[Path, bytes] = {}
    queue = [*files]
    seen = set(queue)
    while queue:
        path = queue.pop()
        text = found[path] = path.read_bytes()
        for included in _INCLUDE.findall(text.decode(errors="replace")):
            for folder in (path.parent, *roots):
                # os.path, because pathlib would make this the slowest part of a cached load
                if os.path.isfile(candidate := os.path.join(folder, included)):
                    header = Path(os.path.realpath(candidate))
                    if header not in seen:
                        seen.add(header)
                        queue.append(header)
                    break
    return found


def _digests(
    sources: tuple[Path, ...], roots: tuple[Path, ...], headers: Sequence[Path] = ()
) -> dict[str, str]:
    """A digest of each source and header, and of each header these reach inside ``roots``.

    A name is "source" or "header" and the path below the root. Other headers belong to the
    compiler, CUDA or torch, whose versions are in the key already.
    """
    found: dict[str, str] = {}
    for path, content in reachable([*sources, *headers], roots).items():
        base = next((r for r in roots if path.is_relative_to(r)), None)
        kind = "source" if path in sources else "header"
        name = f"{kind} {path.relative_to(base) if base else path}"
        while name in found:  # two folders may have a header of one name
            name += " (another)"
        found[name] = hashlib.sha256(content).hexdigest()
    return found


@functools.cache
def _torch_dir() -> Path:
    return Path(torch.__file__).parent
