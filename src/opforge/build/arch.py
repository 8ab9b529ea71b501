# SPDX-License-Identifier: Apache-2.0
"""GPU architectures: which ones to build for, and nvcc's flags for them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import torch

from opforge.errors import ToolchainError

# Without a visible GPU and a choice: Ampere, Hopper and Blackwell servers, and Hopper PTX, which
# the driver compiles for newer GPUs.
DEFAULT = ("8.0", "9.0", "10.0", "9.0+PTX")

FAMILIES = {
    "turing": ("7.5",),
    "ampere": ("8.0", "8.6"),
    "ada": ("8.9",),
    "hopper": ("9.0",),
    "blackwell": ("10.0", "12.0"),
}
_NUMBER = re.compile(r"(\d+)\.(\d)([af]?)(\+PTX)?\Z")
OLDEST = (7, 5)  # nvcc 13 dropped everything before Turing


def select(wish: str | None = None) -> tuple[str, ...]:
    """``--arch``, else TORCH_CUDA_ARCH_LIST, else the visible GPUs, else the default."""
    if text := wish or os.environ.get("TORCH_CUDA_ARCH_LIST"):
        return parse(text)
    if torch.version.cuda is not None and torch.cuda.is_available():
        count = torch.cuda.device_count()
        found = {torch.cuda.get_device_capability(i) for i in range(count)}
        return tuple(f"{major}.{minor}" for major, minor in sorted(found))
    return DEFAULT


def parse(text: str) -> tuple[str, ...]:
    """``"8.0;9.0+PTX"`` or ``"Ampere, Hopper"`` to a tuple of architectures."""
    found: list[str] = []
    for item in re.split(r"[;,\s]+", text.strip(";, \t\n")):
        name = item.removesuffix("+PTX")
        if name.lower() in FAMILIES:
            members = list(FAMILIES[name.lower()])
            found += [*members[:-1], members[-1] + item[len(name) :]]
        elif (match := _NUMBER.match(item)) and (int(match[1]), int(match[2])) >= OLDEST:
            found.append(item)
        else:
            raise ToolchainError(
                f"unknown GPU architecture {item!r}; use numbers from {OLDEST[0]}.{OLDEST[1]} up "
                "such as 9.0, 9.0a or 9.0+PTX, or a family: "
                f"{', '.join(n.capitalize() for n in FAMILIES)}"
            )
    return tuple(dict.fromkeys(found))


def with_needed(chosen: tuple[str, ...], needed: Sequence[str]) -> tuple[str, ...]:
    """``chosen`` for an op that needs certain targets, such as 9.0a.

    A needed target replaces the plain one that it belongs to, and its PTX, which cannot hold such
    kernels. A needed target whose plain one was not chosen is left out.
    """
    wanted = parse(" ".join(needed)) if needed else ()
    exact = {re.sub(r"[af]?(\+PTX)?\Z", "", name): name for name in wanted}
    return tuple(dict.fromkeys(exact.get(c.removesuffix("+PTX"), c) for c in chosen))


def nvcc_flags(archs: tuple[str, ...]) -> list[str]:
    """-gencode for each architecture; ``+PTX`` embeds the intermediate code as well."""
    flags = []
    for arch in archs:
        digits = arch.removesuffix("+PTX").replace(".", "")
        if arch.removesuffix("+PTX") == arch or arch.removesuffix("+PTX") not in archs:
            flags.append(f"-gencode=arch=compute_{digits},code=sm_{digits}")
        if arch.endswith("+PTX"):
            flags.append(f"-gencode=arch=compute_{digits},code=compute_{digits}")
    return flags


def covers(archs: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Whether a library built for ``archs`` runs on a GPU of this compute capability."""
    for arch in archs:
        match = _NUMBER.match(arch)
        if not match:
            continue
        major, minor = int(match[1]), int(match[2])
        if match[3]:  # an `a` or `f` target runs on its own architecture alone
            runs = (major, minor) == capability
        else:
            runs = major == capability[0] and minor <= capability[1]
            runs = runs or (match[4] is not None and (major, minor) <= capability)
        if runs:
            return True
    return False
