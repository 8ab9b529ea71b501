# SPDX-License-Identifier: Apache-2.0
"""The simulator: runs CUDA kernels on the CPU, with their bindings and launch code.

Inside ``with opforge.sim.active():``, CPU tensors go to the simulated CUDA kernels.
``opforge.sim.run(op, *args)`` simulates one call. See docs/simulator.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opforge.errors import SimulationError
    from opforge.sim.runtime import A100, H200, Device, Traffic
    from opforge.sim.simulation import Call, active, run

__all__ = ["A100", "H200", "Call", "Device", "SimulationError", "Traffic", "active", "run"]


def __getattr__(name: str) -> Any:
    # Imported on first use, because `opforge --help` imports this package but not torch.
    if name not in __all__:
        raise AttributeError(f"module 'opforge.sim' has no attribute {name!r}")
    return getattr(import_module("opforge.sim.simulation"), name)
