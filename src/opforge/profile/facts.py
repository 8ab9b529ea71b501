# SPDX-License-Identifier: Apache-2.0
"""The facts about a kernel and a call, in base units: bytes, seconds, shares from 0 to 1.

None means unknown: the GPU does not have the metric, or there is no GPU to measure it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

WIDEST = 16  # bytes that a thread can load at a time


@dataclass(frozen=True)
class Access:
    """Global loads or stores: the number of 32-byte sectors per request of a warp."""

    sectors: float
    ideal: float  # if the same bytes were contiguous

    @property
    def excess(self) -> float:
        """Sectors relative to the ideal. 1 is ideal."""
        return self.sectors / self.ideal if self.ideal else 1.0


@dataclass(frozen=True)
class Kernel:
    """A measured launch of a kernel, or a compiled or simulated kernel."""

    name: str
    grid: str = ""
    block: str = ""
    seconds: float | None = None
    read: float | None = None  # bytes from DRAM (simulated: distinct sectors)
    written: float | None = None
    dram_share: float | None = None  # of the peak bandwidth
    compute_share: float | None = None  # of the peak of the busiest unit in a multiprocessor
    tensor_share: float | None = None  # of the tensor cores' cycles
    occupancy: float | None = None
    occupancy_possible: float | None = None
    limited_by: str | None = None  # what limits the occupancy
    registers: int | None = None
    waves: float | None = None  # how often the grid fills the GPU
    stalls: dict[str, float] = field(default_factory=dict)  # shares of a warp's time, by reason
    loads: Access | None = None
    stores: Access | None = None
    bank_conflicts: float | None = None  # share of the passes over shared memory
    local_bytes: float | None = (
        None  # traffic of spilled registers and of arrays indexed at run time
    )
    instances: int = (
        1  # number of compiled instances of a template; the figures below are their largest
    )
    stack_bytes: int | None = None  # per thread, as compiled
    with_stack: int = 0  # number of instances that use the stack
    spill_bytes: int | None = None  # loads and stores of spilled registers in the code
    shared_bytes: int | None = None  # per block
    load_width: int | None = None  # the widest global load in the code, in bytes
    instructions: dict[str, int] = field(default_factory=dict)  # counts of interesting instructions
    metrics: dict[str, float] = field(default_factory=dict)  # from Nsight Compute

    @property
    def moved(self) -> float | None:
        """Bytes moved to and from DRAM."""
        known = self.read is not None and self.written is not None
        return self.read + self.written if known else None  # type: ignore[operator]

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second."""
        return self.moved / self.seconds if self.moved is not None and self.seconds else None


@dataclass(frozen=True)
class Call:
    """One call of an op and the kernels it launched."""

    what: str
    model_bytes: int | None  # bytes it must move, from the record
    kernels: list[Kernel]
    verdict: str = ""  # of the simulator

    @property
    def measured(self) -> bool:
        """Whether the facts were measured on a GPU."""
        return any(k.seconds is not None for k in self.kernels)

    @property
    def moved(self) -> float | None:
        """Bytes moved by all its kernels."""
        known = [k.moved for k in self.kernels]
        return None if not known or None in known else sum(m for m in known if m is not None)

    @property
    def slowest(self) -> Kernel | None:
        """The slowest kernel, which is the one worth improving."""
        return max(self.kernels, key=lambda k: k.seconds or 0.0, default=None)
