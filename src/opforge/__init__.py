# SPDX-License-Identifier: Apache-2.0
"""opforge: fused GPU operators for PyTorch, and a toolkit to write, prove and time your own.

``opforge.<op>`` is a built-in op. ``opforge.load(folder)`` loads an op of your own.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# name -> module. They are imported on first use, so that `import opforge` is quick.
_LAZY = {
    "Backward": "opforge.op",
    "Build": "opforge.op",
    "Make": "opforge.op",
    "Op": "opforge.op",
    "PackageHeaders": "opforge.op",
    "fuse": "opforge.formula.fuse",
    "inline": "opforge.interactive.inline",
    "load": "opforge.discover",
    "load_ipython_extension": "opforge.interactive.magic",
    "launch_config": "opforge.profile.launch",
    "nvtx": "opforge.profile.nvtx",
    "register_all": "opforge.discover",
}
_MODULES = ("nn", "sim", "testing")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(import_module(_LAZY[name]), name)
    elif name in _MODULES:
        value = import_module(f"opforge.{name}")
    else:
        # `from opforge import discover` would call this function again for "discover"
        discover = import_module("opforge.discover")
        if name not in discover.builtin_names():
            raise AttributeError(f"module 'opforge' has no attribute {name!r}")
        value = discover.load(discover.BUILTIN_FOLDER / name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    discover = import_module("opforge.discover")
    return sorted({*globals(), *_LAZY, *_MODULES, *discover.builtin_names()})
