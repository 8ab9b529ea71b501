# SPDX-License-Identifier: Apache-2.0
"""The places where ops are checked: the CPU kernel, CUDA kernels in the simulator or on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from opforge import sim
from opforge.build import load, targets, unsupported
from opforge.build.targets import Target
from opforge.check import cpu_route
from opforge.errors import NotSimulated
from opforge.op import Op
from opforge.sim import simulation
from opforge.sim.runtime import H200
from opforge.truth import guard


@dataclass(frozen=True)
class Kind:
    """What is fixed about a place: its names, its kernels, and how much runs there in a moment."""

    target: Target
    letter: str  # in rows and tables
    title: str  # in reports
    kinds_of_cases: int = 3  # that a quick check takes
    few_elements: int = 1 << 21  # that take little time
    last_bit: bool = False  # loops over vectors and over elements may differ in the last bit
    # Of a search for cases:
    most_elements: int = 9 << 20
    slow: float = 1.0  # seconds: a case that takes longer is dropped
    processors: tuple[int, ...] = ()  # numbers of multiprocessors of the simulated GPU to try

    @property
    def name(self) -> str:
        """What command lines and reports call it."""
        return self.target.name

    @property
    def on_gpu(self) -> bool:
        """Whether it needs a GPU."""
        return self.target.device == "cuda"

    @property
    def coverage(self) -> Target | None:
        """The build of its kernels that tells which code ran, if there is one."""
        return targets.modes(self.target.kind).get("cover")


CPU = Kind(targets.CPU, "c", "CPU", last_bit=True)
SIM = Kind(
    targets.SIM,
    "s",
    "simulator",
    kinds_of_cases=2,
    few_elements=1 << 19,
    most_elements=1 << 21,  # each takes some microseconds
    slow=2.0,
    processors=(1, 8),
)
CUDA = Kind(targets.CUDA, "g", "GPU")
PLACES = {kind.name: kind for kind in (CPU, SIM, CUDA)}


@dataclass(frozen=True)
class Place:
    """A place to run an op's kernels, and how."""

    name: str
    # Modes of the simulator, as for sim.active. The CPU has only "plain" and "cover".
    mode: simulation.Mode = "plain"
    seed: int | None = None
    placement: bool = False
    processors: int = H200.multiprocessors  # multiprocessors of the simulated GPU
    guard: Literal["", "end", "start"] = ""  # the end of tensors that is next to a guard page
    keep_saved: bool = True  # with guard pages, saved tensors are read-only as well

    @property
    def kind(self) -> Kind:
        """What is fixed about this place."""
        return PLACES[self.name]

    @property
    def target(self) -> Target:
        """What its kernels are built for, in this mode."""
        return targets.modes(self.kind.target.kind)[self.mode]

    @property
    def simulated(self) -> bool:
        """Whether it is the simulator, where everything takes long."""
        return self.kind.target.simulated

    @property
    def device(self) -> str:
        """The device of a case's tensors."""
        return self.kind.target.device

    def __call__(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which calls of an op run the kernels of this place."""
        return self._around()

    @contextlib.contextmanager
    def _around(self) -> Iterator[None]:
        with contextlib.ExitStack() as around:
            if self.guard:
                around.enter_context(guard.pages(self.guard, self.keep_saved))
            if self.target is targets.CPU_COVER:
                around.enter_context(cpu_route.CpuRoute())
            if self.simulated:
                device = replace(H200, multiprocessors=self.processors)
                simulated = sim.active(
                    self.mode, seed=self.seed, placement=self.placement, device=device
                )
                around.enter_context(simulated)
            yield

    def missing(self, op: Op) -> str | None:
        """The reason why ``op`` cannot be checked here, or None."""
        if self.kind.on_gpu and not torch.cuda.is_available():
            return "no CUDA GPU here"
        target = self.kind.target
        if not target.falls_back and not targets.has_kernels(op, target.name):
            return f"the op has no {target.language} source"
        if self.simulated:
            try:
                unsupported.check_op(op)
            except NotSimulated as reason:
                return str(reason)
        return None

    def kernel(self, op: Op) -> str:
        """A description of what runs here."""
        if op.composed is not None:
            return "composed of other ops" + (", simulated" if self.simulated else "")
        if self.simulated:
            return "CUDA kernels in the simulator"
        if self.kind.on_gpu:
            return f"CUDA kernels on {torch.cuda.get_device_name()}"
        if not self.kind.target.sources(op):
            return "the reference: it has no CPU kernel"
        usable, why = load.status(op, self.kind.target.name)
        return "CPU kernel" if usable else f"the reference, because its CPU kernel is {why}"


def title(place: str) -> str:
    """The title of a place, or its name if it is unknown here, as in an old report."""
    return PLACES[place].title if place in PLACES else place


def default_places() -> list[str]:
    """The CPU and the GPU, or without a GPU the CPU and the simulator."""
    return [CPU.name, CUDA.name if torch.cuda.is_available() else SIM.name]
