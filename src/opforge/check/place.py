# SPDX-License-Identifier: Apache-2.0
"""Where an op is checked: its CPU kernel, its CUDA kernels simulated, its CUDA kernels on a GPU."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch

from opforge import sim
from opforge.build import load
from opforge.build.plan import has_sources
from opforge.op import Op

PLACES = ("cpu", "sim", "cuda")
LETTERS = {"cpu": "c", "sim": "s", "cuda": "g"}


@dataclass(frozen=True)
class Place:
    """One of the places; ``device`` is where its tensors are."""

    name: str
    # For the simulator alone, as sim.active takes them.
    mode: sim.Mode = "plain"
    seed: int | None = None
    placement: bool = False

    @property
    def device(self) -> str:
        """The device of a case's tensors."""
        return "cuda" if self.name == "cuda" else "cpu"

    def __call__(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which calls of an op go to this place's kernels."""
        if self.name != "sim":
            return contextlib.nullcontext()
        return sim.active(self.mode, seed=self.seed, placement=self.placement)

    def missing(self, op: Op) -> str | None:
        """Why ``op`` cannot be checked here, if so."""
        if self.name == "cuda" and not torch.cuda.is_available():
            return "no CUDA GPU here"
        if self.name != "cpu" and not has_sources(op, "cuda") and op.composed is None:
            return "the op has no CUDA source"
        return None

    def kernel(self, op: Op) -> str:
        """What runs here, in words."""
        if op.composed is not None:
            return f"composed of other ops, {'simulated' if self.name == 'sim' else 'each its own'}"
        if self.name == "sim":
            return "CUDA kernels in the simulator"
        if self.name == "cuda":
            return f"CUDA kernels on {torch.cuda.get_device_name()}"
        if not has_sources(op, "cpu"):
            return "the reference: it has no CPU kernel"
        usable, why = load.status(op, "cpu")
        return "CPU kernel" if usable else f"the reference, because its CPU kernel is {why}"


def default_places() -> list[str]:
    """The CPU, and the GPU; without a GPU, the simulator in its place."""
    return ["cpu", "cuda" if torch.cuda.is_available() else "sim"]
