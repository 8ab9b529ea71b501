# SPDX-License-Identifier: Apache-2.0
"""The packages that opforge does without until a command needs them."""

from __future__ import annotations

from importlib.util import find_spec

from opforge.errors import MissingPackage

# By extra, as in pyproject.toml: packages, and the modules that are imported of them. (Whether
# there is what the extra "cuda" brings is a matter of finding nvcc: see build/toolchain.py.)
EXTRAS = {
    # random inputs, what torch.library.opcheck imports, and sums that are added up one by one
    "check": {"hypothesis": "hypothesis", "expecttest": "expecttest", "numpy": "numpy"},
    # clocks and power of a GPU, and again such sums: what is timed is compared first
    "bench": {"nvidia-ml-py": "pynvml", "numpy": "numpy"},
    "peers": {"liger-kernel": "liger_kernel", "quack-kernels": "quack"},
    "cutlass": {"nvidia-cutlass": "cutlass_library"},
}


def missing(extra: str) -> list[str]:
    """The packages of an extra that are not installed."""
    return [package for package, module in EXTRAS[extra].items() if find_spec(module) is None]


def install(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'opforge[{extra}]'"


def need(what: str, extra: str, *packages: str) -> None:
    """Raise where ``what`` lacks some of an extra's packages, all if none are named.

    Nothing is imported to find out.
    """
    if gone := [p for p in missing(extra) if not packages or p in packages]:
        raise MissingPackage(
            f"{what} needs {' and '.join(gone)}; install {'it' if len(gone) == 1 else 'them'} "
            f"with: {install(extra)}"
        )
