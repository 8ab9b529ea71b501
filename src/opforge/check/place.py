# SPDX-License-Identifier: Apache-2.0
"""The places where ops are checked: the CPU kernel, CUDA kernels in the simulator or on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from opforge import sim
from opforge.build import load, unsupported
from opforge.build.targets import has_sources
from opforge.check import cpu_route
from opforge.errors import NotSimulated
from opforge.op import Op
from opforge.sim import simulation
from opforge.sim.runtime import H200
from opforge.truth import guard

PLACES = ("cpu", "sim", "cuda")
LETTERS = {"cpu": "c", "sim": "s", "cuda": "g"}


@dataclass(frozen=True)
class Place:
    """A place to run an op's kernels. ``device`` is the device of its tensors."""

    name: str
    # Modes of the simulator, as for sim.active. The CPU has only "plain" and "cover".
    mode: simulation.Mode = "plain"
    seed: int | None = None
    placement: bool = False
    processors: int = H200.multiprocessors  # multiprocessors of the simulated GPU
    guard: Literal["", "end", "start"] = ""  # the end of tensors that is next to a guard page
    keep_saved: bool = True  # with guard pages, saved tensors are read-only as well

    @property
    def device(self) -> str:
        """The device of a case's tensors."""
        return "cuda" if self.name == "cuda" else "cpu"

    def __call__(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which calls of an op run the kernels of this place."""
        return self._around()

    @contextlib.contextmanager
    def _around(self) -> Iterator[None]:
        with contextlib.ExitStack() as around:
            if self.guard:
                around.enter_context(guard.pages(self.guard, self.keep_saved))
            if self.name == "cpu" and self.mode == "cover":
                around.enter_context(cpu_route.CpuRoute())
            if self.name == "sim":
                device = replace(H200, multiprocessors=self.processors)
                simulated = sim.active(
                    self.mode, seed=self.seed, placement=self.placement, device=device
                )
                around.enter_context(simulated)
            yield

    def missing(self, op: Op) -> str | None:
        """The reason why ``op`` cannot be checked here, or None."""
        if self.name == "cuda" and not torch.cuda.is_available():
            return "no CUDA GPU here"
        if self.name != "cpu" and not has_sources(op, "cuda") and op.composed is None:
            return "the op has no CUDA source"
        if self.name == "sim":
            try:
                unsupported.check_op(op)
            except NotSimulated as reason:
                return str(reason)
        return None

    def kernel(self, op: Op) -> str:
        """A description of what runs here."""
        if op.composed is not None:
            return "composed of other ops" + (", simulated" if self.name == "sim" else "")
        if self.name == "sim":
            return "CUDA kernels in the simulator"
        if self.name == "cuda":
            return f"CUDA kernels on {torch.cuda.get_device_name()}"
        if not has_sources(op, "cpu"):
            return "the reference: it has no CPU kernel"
        usable, why = load.status(op, "cpu")
        return "CPU kernel" if usable else f"the reference, because its CPU kernel is {why}"


def default_places() -> list[str]:
    """The CPU and the GPU, or without a GPU the CPU and the simulator."""
    return ["cpu", "cuda" if torch.cuda.is_available() else "sim"]
