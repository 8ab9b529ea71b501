# SPDX-License-Identifier: Apache-2.0
"""Prints a profile on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from opforge.profile.advice import advise
from opforge.profile.facts import Access, Call, Kernel
from opforge.profile.metrics import STALLS, WORKING
from opforge.profile.report import Profile
from opforge.terminal.output import say
from opforge.terminal.words import percent, seconds, size

_UNKNOWN = "n/a"


def on_console(profile: Profile, out: Console) -> None:
    """Print the facts, then the advice."""
    say(out, f"{profile.title}: {profile.origin}")
    if profile.compiled:
        say(out, f"\nkernels as {profile.compiled_by}:")
        for kernel in profile.compiled:
            say(out, "\n".join(compiled(kernel)))
    for call in profile.calls:
        say(out, "\n" + "\n".join(_call(call)))
        say(out, "  what to try next:")
        for text in advise(call):
            say(out, f"  - {text}")
    if profile.notes:
        say(out, "")
    for note in profile.notes:
        say(out, note)


def _call(call: Call) -> Iterator[str]:
    if call.verdict:  # simulated
        yield f"{call.what}, simulated: {call.verdict}"
        for kernel in call.kernels:
            yield f"  {kernel.name}: {kernel.grid} blocks of {kernel.block} threads"
            yield f"    {_accesses(kernel)}"
        return
    if not call.measured and call.kernels:
        yield f"{call.what}:"
        return
    total = sum(k.seconds or 0.0 for k in call.kernels)
    moved = "" if call.moved is None else f", moves {size(call.moved)}"
    must = "" if call.model_bytes is None else f" (it must move {size(call.model_bytes)})"
    count = f"{len(call.kernels)} kernel{'' if len(call.kernels) == 1 else 's'}"
    yield f"{call.what}: {count}, {seconds(total)}{moved}{must}"
    for kernel in call.kernels:
        yield f"  {kernel.name}: {kernel.grid} blocks of {kernel.block} threads"
        yield from (f"    {line}" for line in measured(kernel))


def measured(k: Kernel) -> Iterator[str]:
    """The facts of a launch, one line for each kind."""
    time = _UNKNOWN if k.seconds is None else seconds(k.seconds)
    rate = _UNKNOWN if k.bandwidth is None else f"{size(k.bandwidth)}/s"
    yield f"time        {time}; memory {rate}, {_share(k.dram_share)} of the peak"
    yield f"moved       read {_size(k.read)}, written {_size(k.written)}; local {_local(k)}"
    limit = f", limited by {k.limited_by}" if k.limited_by else ""
    yield (
        f"occupancy   {_share(k.occupancy)} of {_share(k.occupancy_possible)} possible{limit}; "
        f"{_UNKNOWN if k.registers is None else k.registers} registers per thread, "
        f"{_size(k.shared_bytes)} shared memory per block"
    )
    yield f"stalls      {_stalls(k)}"
    yield f"accesses    {_accesses(k)}"
    yield (
        f"units       arithmetic {_share(k.compute_share)}, tensor cores {_share(k.tensor_share)}"
    )


def _stalls(k: Kernel) -> str:
    waits = [(r, share) for r, share in k.stalls.items() if r not in WORKING][:3]
    if not waits:
        return _UNKNOWN
    return ", ".join(f"{STALLS[reason]} {percent(share)}" for reason, share in waits)


def _accesses(k: Kernel) -> str:
    conflicts = "" if k.bank_conflicts is None else f"; bank conflicts {percent(k.bank_conflicts)}"
    return (
        f"sectors per request (ideal in brackets): loads {_access(k.loads)}, "
        f"stores {_access(k.stores)}{conflicts}"
    )


def _access(access: Access | None) -> str:
    return "none" if access is None else f"{access.sectors:.1f} ({access.ideal:.1f})"


def _local(k: Kernel) -> str:
    return "none" if k.local_bytes == 0 else _size(k.local_bytes)


def _size(count: float | None) -> str:
    return _UNKNOWN if count is None else size(count)


def _share(share: float | None) -> str:
    return _UNKNOWN if share is None else percent(share)


def compiled(k: Kernel) -> Iterator[str]:
    """The facts of a compiled kernel, with the largest figures of a template's instances."""
    instances = "" if k.instances == 1 else f" ({k.instances} instances)"
    spilled = _UNKNOWN if k.spill_bytes is None else f"{k.spill_bytes} B"
    yield f"  {k.name}{instances}"
    yield (
        f"    resources   {k.registers} registers, {k.stack_bytes} B of stack, {spilled} spilled, "
        f"{k.shared_bytes} B of shared memory"
    )
    if k.instructions:
        counts = [f"{n} {k.instructions.get(n, 0)}" for n in ("local", "matrix", "barrier")]
        yield (
            f"    code        loads of {_widths(k, 'load')}; stores of {_widths(k, 'store')}; "
            f"{', '.join(counts)}"
        )


def _widths(k: Kernel, kind: str) -> str:
    """The numbers of loads or stores of each width: ``16 B: 7, 2 B: 2``."""
    found = {int(n.split()[-1]): v for n, v in k.instructions.items() if n.startswith(f"{kind} ")}
    return (
        ", ".join(f"{width} B: {found[width]}" for width in sorted(found, reverse=True))
        or "no bytes"
    )
