# SPDX-License-Identifier: Apache-2.0
"""``export_sources(op, folder)``: a folder that DeepSpeed compiles without opforge."""

from __future__ import annotations

import pprint
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import opforge
from opforge import discover
from opforge.integrations.deepspeed.builder import class_name
from opforge.op import Op
from opforge.ship import sources

_BUILDER = string.Template('''\
# SPDX-License-Identifier: Apache-2.0
"""The builder of $name for DeepSpeed. opforge $version wrote this folder; it works without it."""

from pathlib import Path

from deepspeed.accelerator import get_accelerator
from deepspeed.ops.op_builder.builder import CUDAOpBuilder, OpBuilder

HERE = Path(__file__).resolve().parent
DEVICE = get_accelerator().device_name()

SOURCES = $sources
INCLUDE_PATHS = $folders
CXX_ARGS = $cxx
NVCC_ARGS = $nvcc
LDFLAGS = $link


class $builder(CUDAOpBuilder if DEVICE == "cuda" else OpBuilder):
    BUILD_VAR = "DS_BUILD_$upper"
    NAME = "$name"

    def __init__(self, name=None):
        super().__init__(name=self.NAME if name is None else name)

    def absolute_name(self):
        return f"deepspeed.ops.{self.NAME}.{self.NAME}_op"

    def is_compatible(self, verbose=False):
        if DEVICE not in SOURCES:
            self.error_log = f"{self.NAME} has no sources for {DEVICE}"
            if verbose:
                self.warning(self.error_log)
            return False
        return super().is_compatible(verbose)

    def sources(self):
        return [str(HERE / source) for source in SOURCES[DEVICE]]

    def include_paths(self):
        return [str(HERE / folder) for folder in INCLUDE_PATHS[DEVICE]]

    def cxx_args(self):
        return list(CXX_ARGS[DEVICE])

    def nvcc_args(self):
        return list(NVCC_ARGS[DEVICE])

    def extra_ldflags(self):
        return list(LDFLAGS[DEVICE])
''')


def export_sources(
    op: str | Path | Op | Callable[..., Any], folder: str | Path, force: bool = False
) -> Path:
    """Write what DeepSpeed needs to compile an op by itself: sources, headers and ``builder.py``.

    Args:
        op: a built-in name, an op folder, a record or a public function.
        folder: a new or empty folder.
        force: whether files in a folder that is not empty may be replaced.
    """
    record, place = discover.record_of(op), Path(folder)
    kits = sources.kits(record)
    sources.write(kits, {"builder.py": _builder(record, kits)}, place, force)
    return place


def _builder(op: Op, kits: dict[str, sources.Kit]) -> str:
    found = {target: kit.relative() for target, kit in kits.items()}

    def table(field: str) -> str:
        rows = {target: [str(v) for v in getattr(one, field)] for target, one in found.items()}
        return pprint.pformat(rows, sort_dicts=False, width=100)

    return _BUILDER.substitute(
        version=opforge.__version__,
        name=op.name,
        upper=op.name.upper(),
        builder=class_name(op),
        sources=table("files"),
        **{field: table(field) for field in ("folders", "cxx", "nvcc", "link")},
    )
