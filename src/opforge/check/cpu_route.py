# SPDX-License-Identifier: Apache-2.0
"""Sends ops to the build of their CPU kernel that tells which code ran."""

from __future__ import annotations

from typing import Any

from opforge.build.targets import COVERAGE
from opforge.op import Op
from opforge.sim.runtime import H200
from opforge.sim.simulation import Route


class CpuRoute(Route):
    """Within it CPU tensors go to the build for coverage, not to the one that users get."""

    def __init__(self) -> None:
        super().__init__(COVERAGE["cpu"], H200)

    def run(self, op: Op, name: str, kernel: Any, args: tuple[Any, ...]) -> Any:
        """Call the kernel: there is nothing to simulate."""
        return kernel(*args)
