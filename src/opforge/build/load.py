# SPDX-License-Identifier: Apache-2.0
"""Finds an op's compiled kernel and loads it: prebuilt, then cache, then JIT, else an error."""

from __future__ import annotations

import platform
import shlex
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version

from opforge import settings
from opforge.build import arch, cache, toolchain
from opforge.build.plan import ABI, plan, signature_digest
from opforge.build.targets import has_sources
from opforge.errors import CacheError, KernelUnavailable, OpforgeError, ToolchainError
from opforge.op import Op

_lock = threading.RLock()
# (namespace, op, target) -> the loaded library, or why there is none
_attempts: dict[tuple[str, str, str], cache.Library | OpforgeError] = {}


def ensure(op: Op, function: str, device_type: str) -> bool:
    """Load the kernel for a device, once. True: torch now has it. False: the reference serves.

    A CUDA tensor is never served by the reference: that raises.
    """
    if device_type not in ("cpu", "cuda"):
        return False
    with _lock:
        outcome = _attempt(op, device_type)
    key, qualified = device_type.upper(), f"{op.namespace}::{function}"
    if isinstance(outcome, cache.Library):
        if torch._C._dispatch_has_kernel_for_dispatch_key(qualified, key):
            return True
        outcome = KernelUnavailable(f"{outcome.path} does not implement {function}")
    if device_type == "cuda":
        raise KernelUnavailable(f"opforge.{op.name} has no CUDA kernel for this tensor: {outcome}")
    return False


def _attempt(op: Op, target: str) -> cache.Library | OpforgeError:
    known = (op.namespace, op.name, target)
    if known not in _attempts:
        if target == "cuda" and _is_capturing():
            raise KernelUnavailable(
                f"opforge.{op.name} is not loaded yet, and loading is impossible while a CUDA "
                "graph is being captured: run it once before capturing"
            )
        try:
            library = find(op, target)
            _load(library)
            _attempts[known] = library
        except (ToolchainError, KernelUnavailable, CacheError) as error:
            # No compiler, no source, no place to build. (A compile error is raised: it is a bug.)
            _attempts[known] = error
            if target == "cpu" and has_sources(op, target):
                warnings.warn(
                    f"opforge.{op.name} runs through its PyTorch reference on the CPU: {error}",
                    stacklevel=2,
                )
    return _attempts[known]


def _is_capturing() -> bool:
    return torch.version.cuda is not None and torch.cuda.is_current_stream_capturing()


def _load(library: cache.Library) -> None:
    try:
        torch.ops.load_library(str(library.path))
    except OSError as error:  # a prebuilt one, for an older system or with a library missing
        raise KernelUnavailable(f"{library.path} cannot be loaded: {error}") from None


def loaded_path(op: Op, target: str) -> Path:
    """Where the library lies that ``ensure`` loaded."""
    library = _attempts[op.namespace, op.name, target]
    assert isinstance(library, cache.Library)
    return library.path


def find(op: Op, target: str) -> cache.Library:
    """A library for this op and target that fits this machine, built if need be."""
    missing = (
        f"missing {op.name}-{target}.so, and OPFORGE_JIT=0 forbids compiling it; run "
        f"`{build_command(op, target)}` or unset OPFORGE_JIT"
    )
    try:
        library = find_ready(op, target)
    except ToolchainError as error:
        if settings.jit_enabled():
            raise
        raise KernelUnavailable(f"{missing} ({error})") from None
    if library is not None:
        return library
    if not settings.jit_enabled():
        raise KernelUnavailable(missing)
    from opforge.build import compile  # its progress display takes longer to import than to load

    return compile.build([plan(op, target)])[0]


def find_ready(op: Op, target: str) -> cache.Library | None:
    """A library that is there already, prebuilt or cached; None if it would have to be built."""
    if target == "cuda" and not settings.cuda_enabled():
        raise KernelUnavailable("CUDA is turned off by USE_CUDA=0")
    if (library := find_prebuilt(op, target)) is not None:
        return library
    if not has_sources(op, target):
        raise KernelUnavailable(f"{op.folder} has no source for {target} and nothing is prebuilt")
    if (library := cache.lookup(plan(op, target).entry)) is not None:
        check_fits(library)
    return library


def build_command(op: Op, target: str) -> str:
    """What a user types to have the op built."""
    is_builtin = op.namespace == "opforge"
    return f"opforge build {op.name if is_builtin else shlex.quote(str(op.folder))} --{target}"


def find_prebuilt(op: Op, target: str) -> cache.Library | None:
    """From OPFORGE_PREBUILT, or from the op's own ``prebuilt/`` folder, as wheels ship them.

    What OPFORGE_PREBUILT names must fit. A wheel's library that does not fit this machine is passed
    over where there are sources to build another one from.
    """
    assert op.folder is not None
    if (named := settings.prebuilt_dir()) and (library := _prebuilt_in(named, op, target)):
        return library
    try:
        return _prebuilt_in(op.folder / "prebuilt", op, target)
    except OpforgeError as error:
        if not has_sources(op, target):
            raise
        print(f"opforge: {error}; looking further", file=sys.stderr)
        return None


def _prebuilt_in(folder: Path, op: Op, target: str) -> cache.Library | None:
    manifest = folder / f"{op.name}-{target}.json"
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
            f"{path} is built for {facts['machine']}, this is {platform.machine()}"
        )
    missing = set(facts["cpu_flags"]) - set(toolchain.cpu_flags().split())
    if missing:
        raise KernelUnavailable(
            f"{path} needs CPU instructions this CPU lacks: {', '.join(sorted(missing))}"
        )
    if facts["target"] == "cuda" and torch.version.cuda is not None and torch.cuda.is_available():
        capability = torch.cuda.get_device_capability()
        if not arch.covers(tuple(facts["archs"]), capability):
            raise KernelUnavailable(
                f"{path} is built for {', '.join(facts['archs'])}, but the GPU is "
                f"{capability[0]}.{capability[1]}; rebuild it with "
                f"`opforge build {facts['op']} --cuda --arch {capability[0]}.{capability[1]}`"
            )


def _check_is_of(library: cache.Library, op: Op) -> None:
    """A prebuilt library implements the very schemas of this record, under its namespace."""
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
    """Whether a kernel is usable, and where from or why not, without building anything."""
    try:
        library = find_ready(op, target)
    except OpforgeError as error:
        return False, str(error)
    return (False, "not built yet") if library is None else (True, str(library.path))
