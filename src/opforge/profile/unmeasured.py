# SPDX-License-Identifier: Apache-2.0
"""Facts about an op without a GPU: the compiled code and the simulator's counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from opforge.bench import shapes
from opforge.bench.inputs import DeviceMake
from opforge.build.targets import SIM_RACE
from opforge.errors import (
    KernelUnavailable,
    NotSimulated,
    RecordError,
    SimulationError,
    ToolchainError,
)
from opforge.profile import compiled, sass
from opforge.profile.facts import Access, Call, Kernel
from opforge.profile.request import Request
from opforge.sim import runtime, stats
from opforge.truth.cases import as_leaves

_MOST = 1 << 20  # elements to simulate
LEGEND = (
    "Simulated: bytes are the distinct 32-byte sectors of each launch; sectors are counted per "
    "request of a warp. This is a model of the memory traffic, not of the time."
)


@dataclass(frozen=True)
class Known:
    """The compiled kernels, the simulated calls, and notes on what is missing."""

    kernels: list[Kernel]
    calls: list[Call]
    notes: list[str]
    arch: str = ""
    source: str = ""


def look(request: Request) -> Known:
    """Collect both. If one is not available, a note says why. A fault in the code is an error."""
    op, notes = request.op, []
    kernels, arch, source = [], "", ""
    try:
        code = compiled.inspect(op)
        kernels, arch, source = sass.merge(code.of(request.dtype)), code.arch, code.source
        notes += [code.missing] if code.missing else []
    except (ToolchainError, KernelUnavailable) as error:
        notes.append(f"the compiled code could not be inspected: {error}")
    calls = []
    try:
        calls = simulate(request, kernels)
    except SimulationError as fault:
        notes.append(f"the simulator found a fault (see `opforge sim --race`): {fault}")
    except (
        ToolchainError,
        KernelUnavailable,
        NotSimulated,
        RecordError,
        shapes.ShapeError,
    ) as error:
        notes.append(f"the memory traffic could not be simulated: {error}")
    # Without a simulated call, the advice is about the compiled kernels, those with the widest
    # loads first. A slow path for odd tensors next to a fast one is fine.
    widest = sorted(kernels, key=lambda k: -(k.load_width or 0))
    return Known(kernels, calls or [Call("as compiled", None, widest)], notes, arch, source)


def simulate(request: Request, kernels: list[Kernel]) -> list[Call]:
    """The simulated calls of the request, with facts of the compiled code in each kernel.

    The first dims are cut so that it takes a second. Counts per request do not depend on them.
    """
    op = request.op
    runtime.build([op], SIM_RACE.name)
    code = {k.name: k for k in kernels}
    made = shapes.arguments(op, DeviceMake(request.dtype, "cpu"), cut(request.shape))
    return [
        Call(
            f"{call.function}{call.shapes}{f' ({variant})' if variant else ''}",
            call.model_bytes,
            [_kernel(t, code.get(t.kernel, Kernel(t.kernel))) for t in call.launches],
            stats.verdict(call),
        )
        for variant, case in made.items()
        for call in stats.measure_case(op, as_leaves(case) if request.backward else case)
    ]


def cut(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with fewer elements. It keeps its last dims as far as possible."""
    sizes = list(shape)
    for i in range(len(sizes)):
        while math.prod(sizes) > _MOST and sizes[i] > 1:
            sizes[i] //= 2
    return tuple(sizes)


def _kernel(t: runtime.Traffic, code: Kernel) -> Kernel:
    return replace(
        code,
        grid=str(t.blocks),
        block=str(t.threads),
        read=float(t.distinct_read),
        written=float(t.distinct_written),
        loads=_access(t.read_requests, t.read_sectors, t.read_fewest),
        stores=_access(t.write_requests, t.write_sectors, t.write_fewest),
        bank_conflicts=1 - t.shared_fewest / t.shared_passes if t.shared_passes else None,
    )


def _access(requests: int, sectors: int, fewest: int) -> Access | None:
    return Access(sectors / requests, fewest / requests) if requests else None
