# SPDX-License-Identifier: Apache-2.0
"""Redirects ops to the coverage build of their CPU kernel, which records the code that ran."""

from __future__ import annotations

from typing import Any

from opforge.build.targets import CPU_COVER
from opforge.op import Op
from opforge.sim.runtime import H200
from opforge.sim.simulation import Route


class CpuRoute(Route):
    """A context in which CPU tensors run in the coverage build in place of the normal one."""

    def __init__(self) -> None:
        super().__init__(CPU_COVER.name, H200)

    def run(self, op: Op, name: str, kernel: Any, args: tuple[Any, ...]) -> Any:
        """Call the kernel of the coverage build."""
        return kernel(*args)
