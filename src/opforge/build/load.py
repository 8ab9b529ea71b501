# SPDX-License-Identifier: Apache-2.0
"""Finds an op's compiled kernel and loads it: prebuilt, then cache, then JIT, else an error."""

from __future__ import annotations

import _thread
import ctypes
import platform
import shlex
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version

from opforge import discover, settings
from opforge.build import cache, choices, targets
from opforge.build.cpu import cpu_flags
from opforge.build.parts import BASE, parts_of
from opforge.build.plan import ABI, plan, signature_digest, stem
from opforge.build.targets import Target, has_sources
from opforge.errors import CacheError, KernelUnavailable, OpforgeError, ToolchainError
from opforge.op import Op

_lock = threading.RLock()
# By namespace, op and target: the loaded library that torch calls, the digest of the sources then,
# and overrides of the launch configuration.
_loaded: dict[tuple[str, str, str], cache.Library] = {}
_sources: dict[tuple[str, str, str], str] = {}
_tuning: dict[tuple[str, str, str], tuple[int, int, int]] = {}
# By part as well: what is open.
_opened: dict[tuple[str, str, str, str], ctypes.CDLL] = {}
# By dtype as well, where it matters: why there is no library.
_failed: dict[tuple[str, str, str, torch.dtype | None], OpforgeError] = {}
# The C++ side of it is Loader in host/registration.h.
_LOADER = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_uint64
)
_loaders: list[Any] = []  # callable for as long as there are libraries that may call them


def ensure(op: Op, function: str, device_type: str, dtype: torch.dtype | None = None) -> bool:
    """Load the kernel for a device, once. True: torch now has it. False: the reference serves.

    ``dtype`` is that of the call which needs it: what is compiled by dtype is built for it now.
    A CUDA tensor is never served by the reference: that raises.
    """
    goal = targets.for_device(device_type)
    if goal is None:
        return False
    with _lock:
        outcome = _attempt(op, goal, dtype)
    if isinstance(outcome, cache.Library):
        qualified = f"{op.namespace}::{function}"
        if torch._C._dispatch_has_kernel_for_dispatch_key(qualified, goal.dispatch_key):
            return True
        outcome = KernelUnavailable(f"{outcome.path} does not implement {function}")
    if goal.falls_back:
        return False
    raise KernelUnavailable(
        f"opforge.{op.name} has no {goal.language} kernel for this tensor: {outcome}"
    )


def _attempt(op: Op, goal: Target, dtype: torch.dtype | None) -> cache.Library | OpforgeError:
    target = goal.name
    known = (op.namespace, op.name, target)
    # Where the kernels of one dtype cannot be had, those of another may be there.
    failed = (*known, dtype if target in op.build.by_dtype else None)
    if known not in _loaded and failed not in _failed:
        _refuse_while_capturing(op, goal)
        try:
            library = find(op, target, dtype)
            _load(library)
            _connect(op, target, BASE, library)
            _sources[known] = discover.digest_of(op)
            _loaded[known] = library
        except (ToolchainError, KernelUnavailable, CacheError) as error:
            # No compiler, no source, no place to build. (A compile error is raised: it is a bug.)
            _failed[failed] = error
            if goal.falls_back and goal.sources(op):
                warnings.warn(
                    f"opforge.{op.name} runs through its PyTorch reference on the CPU: {error}",
                    stacklevel=2,
                )
    return _loaded[known] if known in _loaded else _failed[failed]


def _refuse_while_capturing(op: Op, goal: Target, part: str = BASE) -> None:
    if goal.is_capturing():
        what = f"the part of opforge.{op.name} for {part}" if part else f"opforge.{op.name}"
        raise KernelUnavailable(
            f"{what} is not loaded yet, and loading is impossible while a CUDA graph is being "
            "captured: run it once before capturing"
        )


def _load(library: cache.Library) -> None:
    try:
        torch.ops.load_library(str(library.path))
    except OSError as error:  # a prebuilt one, for an older system or with a library missing
        raise KernelUnavailable(f"{library.path} cannot be loaded: {error}") from None


def _connect(op: Op, target: str, part: str, library: cache.Library) -> ctypes.CDLL:
    """Have a library that was loaded find functions of the op's other parts through Python."""
    opened = ctypes.CDLL(str(library.path))
    _opened[op.namespace, op.name, target, part] = opened
    _tune_one(opened, _tuning.get((op.namespace, op.name, target), (0, 0, 0)))
    if hasattr(opened, "opforge_set_choices") and (table := choices.table(op)):
        opened.opforge_set_choices(table.encode())
    if not hasattr(opened, "opforge_set_loader"):
        return opened

    def find_in_part(part: bytes, name: bytes, error: int, room: int) -> int | None:
        try:
            return _function_of_part(op, target, part.decode(), name)
        except BaseException as problem:  # which C++ raises again, as a RuntimeError
            text = (str(problem) or type(problem).__name__).encode(errors="replace")[: room - 1]
            text = text.decode(errors="ignore").encode()  # no half of a character
            ctypes.memmove(error, text + b"\0", len(text) + 1)
            if isinstance(problem, KeyboardInterrupt):
                _thread.interrupt_main()
            return None

    loader = _LOADER(find_in_part)
    opened.opforge_set_loader(loader)
    _loaders.append(loader)
    return opened


def _function_of_part(op: Op, target: str, part: str, name: bytes) -> int:
    """The address of a function in another part, which is loaded, and built if need be."""
    known = (op.namespace, op.name, target)
    with _lock:
        opened = _opened.get((*known, part))
        if opened is None:
            _refuse_while_capturing(op, targets.find(target), part)
            if _sources.get(known) not in (None, discover.digest_of(op)):
                raise KernelUnavailable(
                    f"the sources of {op.name} have changed since it was loaded, and its part for "
                    f"{part} would not fit the others; load {op.name} again, or restart Python"
                )
            (library,) = find_parts(op, target, [part])
            opened = _connect(op, target, part, library)
            opened.opforge_find.restype = ctypes.c_void_p
    address: int | None = opened.opforge_find(name)
    if address is None:
        raise KernelUnavailable(
            f"the part of {op.name} for {part} has no {name.decode()}; build {op.name} again"
        )
    return address


def tune(op: Op, target: str, block: int, rows: int, vec: int) -> None:
    """Override the launch configuration of the op's kernels, also of parts loaded later."""
    known = (op.namespace, op.name, target)
    with _lock:
        _tuning[known] = (block, rows, vec)
        for place, opened in _opened.items():
            if place[:3] == known:
                _tune_one(opened, _tuning[known])


def _tune_one(opened: ctypes.CDLL, values: tuple[int, int, int]) -> None:
    if hasattr(opened, "opforge_set_tuning"):  # it has CUDA kernels
        opened.opforge_set_tuning(*values)


def choose(op: Op, target: str, table: str) -> None:
    """Replace the choices of kernels for matrix products in what is loaded: see choices.py."""
    for opened in _with_products(op, target):
        opened.opforge_set_choices(table.encode())


def record_products(op: Op, target: str, start: bool) -> str:
    """Have what is loaded write down the products it makes. Without ``start``, stop and get them.

    A line per product: dtype, majors, m, n, k, and the kernels that can make it.
    """
    found = ""
    for opened in _with_products(op, target):
        opened.opforge_record_products.restype = ctypes.c_char_p
        found += opened.opforge_record_products(int(start)).decode()
    return found


def _with_products(op: Op, target: str) -> list[ctypes.CDLL]:
    known = (op.namespace, op.name, target)
    with _lock:
        libraries = [opened for place, opened in _opened.items() if place[:3] == known]
    return [opened for opened in libraries if hasattr(opened, "opforge_set_choices")]


def loaded_path(op: Op, target: str) -> Path:
    """The library that ``ensure`` loaded."""
    return _loaded[op.namespace, op.name, target].path


def find(op: Op, target: str, dtype: torch.dtype | None = None) -> cache.Library:
    """The op's library for a target that fits this machine, built if need be.

    Of an op that is compiled by dtype this is the part that torch calls. That for ``dtype`` is
    found or built along with it, or those for all dtypes.
    """
    parts = parts_of(op, targets.find(target))
    names = [p.name for p in parts.all] if dtype is None else parts.for_dtype(dtype)
    return find_parts(op, target, names)[0]


def find_parts(op: Op, target: str, names: Sequence[str]) -> list[cache.Library]:
    """The libraries of parts by their names; missing ones are all built at once."""

    def missing(name: str) -> str:
        return (
            f"{stem(op.name, target, name)}.so is missing, and OPFORGE_JIT=0 forbids compiling it; "
            f"run `{build_command(op, target)}` or unset OPFORGE_JIT"
        )

    ready: dict[str, cache.Library | None] = {}
    for name in names:
        try:
            ready[name] = find_ready(op, target, name)
        except ToolchainError as error:
            if settings.jit_enabled():
                raise
            raise KernelUnavailable(f"{missing(name)} ({error})") from None
    absent = [name for name in names if ready[name] is None]
    if absent and not settings.jit_enabled():
        raise KernelUnavailable(missing(absent[0]))
    if absent:
        # Imported here, because its progress display takes longer to import than a library to load.
        from opforge.build import compile

        built = compile.build([plan(op, target, part=name) for name in absent])
        ready |= dict(zip(absent, built, strict=True))
    return [library for library in ready.values() if library is not None]


def find_ready(op: Op, target: str, part: str = BASE) -> cache.Library | None:
    """A library that exists already, prebuilt or cached; None if it would have to be built."""
    if reason := targets.find(target).turned_off():
        raise KernelUnavailable(reason)
    if (library := find_prebuilt(op, target, part)) is not None:
        return library
    if not has_sources(op, target):
        raise KernelUnavailable(f"{op.folder} has no source for {target} and no prebuilt library")
    if (library := cache.lookup(plan(op, target, part=part).entry)) is not None:
        check_fits(library)
    return library


def build_command(op: Op, target: str) -> str:
    """The command that builds the op."""
    is_builtin = op.namespace == "opforge"
    return f"opforge build {op.name if is_builtin else shlex.quote(str(op.folder))} --{target}"


def find_prebuilt(op: Op, target: str, part: str = BASE) -> cache.Library | None:
    """From OPFORGE_PREBUILT, or from the op's own ``prebuilt/`` folder, as wheels ship them.

    A library that OPFORGE_PREBUILT names must fit. A wheel's library that does not fit this machine
    is ignored if there are sources to build another one from.
    """
    assert op.folder is not None
    if (named := settings.prebuilt_dir()) and (library := _prebuilt_in(named, op, target, part)):
        return library
    try:
        return _prebuilt_in(op.folder / "prebuilt", op, target, part)
    except OpforgeError as error:
        if not has_sources(op, target):
            raise
        print(f"opforge: {error}; using the cache or the compiler instead", file=sys.stderr)
        return None


def _prebuilt_in(folder: Path, op: Op, target: str, part: str) -> cache.Library | None:
    manifest = folder / f"{stem(op.name, target, part)}.json"
    if manifest.is_file():
        found = cache.read(manifest)
        check_fits(found)
        _check_is_of(found, op)
        return found
    if manifest.with_suffix(".so").is_file():
        raise KernelUnavailable(
            f"{manifest.with_suffix('.so')} has no manifest beside it; make it with `opforge build`"
        )
    return None


def check_fits(library: cache.Library) -> None:
    """Refuse a library that this torch, CPU or GPU cannot run, before it is loaded."""
    facts, path = library.manifest, library.path
    abi = tuple(facts["abi"]) if isinstance(facts["abi"], list) else ()
    running = Version(torch.__version__)
    if len(abi) != 2 or abi[0] != ABI[0]:
        raise KernelUnavailable(
            f"{path} is built for another ABI ({facts['abi']}); rebuild it with opforge build"
        )
    if (running.major, running.minor) < abi:
        raise KernelUnavailable(
            f"{path} is built for the stable ABI of torch {abi[0]}.{abi[1]} and newer; "
            f"this is torch {torch.__version__}. Upgrade torch, or rebuild it with opforge build"
        )
    if facts["machine"] != platform.machine():
        raise KernelUnavailable(
            f"{path} is built for {facts['machine']}, but this machine is {platform.machine()}"
        )
    missing = set(facts["cpu_flags"]) - set(cpu_flags().split())
    if missing:
        raise KernelUnavailable(
            f"{path} needs CPU instructions that this CPU lacks: {', '.join(sorted(missing))}"
        )
    goal = targets.ALL.get(facts["target"])  # None in a manifest that is not ours
    if reason := goal.misfit(facts) if goal else "":
        raise KernelUnavailable(f"{path} {reason}")


def _check_is_of(library: cache.Library, op: Op) -> None:
    """Refuse a prebuilt library with another namespace or schemas than this record's."""
    flags: Any = library.manifest["ingredients"]["flags"]
    if f"-DOPFORGE_NAMESPACE={op.namespace} " not in f"{flags} ":
        raise KernelUnavailable(
            f"{library.path} is built for another namespace than {op.namespace}"
        )
    signature = library.manifest["ingredients"]["signature"]
    if signature != signature_digest(op):
        raise KernelUnavailable(
            f"{library.path} was built from another version of {op.name}'s schema; "
            f"run `{build_command(op, library.manifest['target'])}` again"
        )


def status(op: Op, target: str) -> tuple[bool, str]:
    """Whether the op's library is usable, and its path or the reason, without building anything."""
    try:
        library = find_ready(op, target)
    except OpforgeError as error:
        return False, str(error)
    return (False, "not built yet") if library is None else (True, str(library.path))
