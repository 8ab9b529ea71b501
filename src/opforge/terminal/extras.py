# SPDX-License-Identifier: Apache-2.0
"""Optional packages: which extra has them, and the error that names the install command."""

from __future__ import annotations

from importlib.util import find_spec

from opforge.errors import MissingPackage

# extra -> {package: module}, as in pyproject.toml. The extra "cuda" is not listed: it installs
# nvcc, which build/toolchain.py looks for.
EXTRAS = {
    # hypothesis draws random inputs, opcheck imports expecttest, numpy adds term by term
    "check": {"hypothesis": "hypothesis", "expecttest": "expecttest", "numpy": "numpy"},
    # pynvml reads a GPU's clocks and power; numpy as above, because bench compares results first
    "bench": {"nvidia-ml-py": "pynvml", "numpy": "numpy"},
    "peers": {"liger-kernel": "liger_kernel", "quack-kernels": "quack"},
    "cutlass": {"nvidia-cutlass": "cutlass_library"},
    "deepspeed": {"deepspeed": "deepspeed"},
}


def missing(extra: str) -> list[str]:
    """The packages of an extra that are not installed."""
    return [package for package, module in EXTRAS[extra].items() if find_spec(module) is None]


def install(extra: str) -> str:
    """The pip command that installs an extra."""
    return f"pip install 'opforge[{extra}]'"


def need(what: str, extra: str, *packages: str) -> None:
    """Raise MissingPackage if ``what`` needs packages of an extra that are not installed.

    Without ``packages``, all of the extra are needed. No package is imported.
    """
    if gone := [p for p in missing(extra) if not packages or p in packages]:
        raise MissingPackage(
            f"{what} needs {' and '.join(gone)}; install {'it' if len(gone) == 1 else 'them'} "
            f"with: {install(extra)}"
        )
