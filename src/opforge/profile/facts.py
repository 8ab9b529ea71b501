# SPDX-License-Identifier: Apache-2.0
"""What is known of a kernel and of a call, in base units: bytes, seconds, shares from 0 to 1.

None is "not known": a metric that this GPU lacks, or a fact that takes a GPU to find out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

WIDEST = 16  # bytes a thread can load at a time


@dataclass(frozen=True)
class Access:
    """Global loads or stores: how many 32-byte sectors a request of a warp touches."""

    sectors: float
    ideal: float  # if the same bytes lay side by side

    @property
    def excess(self) -> float:
        """1 is ideal."""
        return self.sectors / self.ideal if self.ideal else 1.0


@dataclass(frozen=True)
class Kernel:
    """One launch of a kernel, measured; or a kernel as compiled or simulated."""

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
    limited_by: str | None = None  # what keeps more warps away
    registers: int | None = None
    waves: float | None = None  # how often the grid fills the GPU
    stalls: dict[str, float] = field(default_factory=dict)  # shares of a warp's time, by reason
    loads: Access | None = None
    stores: Access | None = None
    bank_conflicts: float | None = None  # share of the passes over shared memory
    local_bytes: float | None = None  # of spilled registers and of arrays indexed at run time
    instances: int = 1  # of a template, as compiled; the figures below are the largest among them
    stack_bytes: int | None = None  # per thread, as compiled
    with_stack: int = 0  # how many of the instances have one
    spill_bytes: int | None = None  # loads and stores of spilled registers in the code
    shared_bytes: int | None = None  # per block
    load_width: int | None = None  # the widest global load in the code, in bytes
    instructions: dict[str, int] = field(default_factory=dict)  # of interest, in the code
    metrics: dict[str, float] = field(default_factory=dict)  # as Nsight Compute gave them

    @property
    def moved(self) -> float | None:
        """Bytes to and from DRAM."""
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
    model_bytes: int | None  # what it must move, by the record
    kernels: list[Kernel]
    verdict: str = ""  # the simulator's

    @property
    def measured(self) -> bool:
        """Whether a GPU told, rather than the simulator or the compiler."""
        return any(k.seconds is not None for k in self.kernels)

    @property
    def moved(self) -> float | None:
        """Bytes of all its kernels."""
        known = [k.moved for k in self.kernels]
        return None if not known or None in known else sum(m for m in known if m is not None)

    @property
    def slowest(self) -> Kernel | None:
        """The kernel that takes the longest: the one worth improving."""
        return max(self.kernels, key=lambda k: k.seconds or 0.0, default=None)
