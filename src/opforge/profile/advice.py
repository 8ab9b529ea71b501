# SPDX-License-Identifier: Apache-2.0
"""Rules that suggest what to try next, from the facts of a call. docs/profile.md lists them.

A rule is a function that returns a sentence or None. The surest rules come first, and the first
three sentences are shown. Every threshold is a constant in this file.
"""

from __future__ import annotations

from collections.abc import Callable

from opforge.profile.facts import WIDEST, Access, Call
from opforge.profile.metrics import STALLS
from opforge.terminal.words import percent, seconds, size

NEAR = 0.80  # of the peak DRAM bandwidth; a plain copy reaches about 0.85 of it on an H200
EXTRA = 1.10  # times the bytes that must move; less comes from partial sectors and workspaces
EXTRA_BYTES = 65536  # and at least this many bytes more, because a GPU's counters have noise
EXACT_BYTES = 4096  # the simulator's counters have no noise
UNCOALESCED = 1.25  # times the ideal number of sectors
WAITING = 0.30  # of a warp's time, for one reason
LOW_OCCUPANCY = 0.50
LOCAL = 0.01  # of the bytes that the call moves
CONFLICTS = 0.20  # of the passes over shared memory
ARITHMETIC = 0.60  # of the peak of a multiprocessor
SHORT = 5e-6  # seconds; a launch alone takes about half of that
MOST = 3  # sentences at most

Rule = Callable[[Call], str | None]


def advise(call: Call) -> list[str]:
    """One to three sentences of advice."""
    if call.slowest is None:
        return ["No kernel is launched, so there is nothing to make faster."]
    if limit := at_the_limit(call):
        return [limit]
    found = [text for rule in RULES if (text := rule(call)) is not None]
    if not found:
        look = "start with the largest stall above" if call.measured else "measure it on a GPU"
        return [f"Nothing stands out; {look}."]
    return found[:MOST]


def at_the_limit(call: Call) -> str | None:
    """The kernel is near the peak bandwidth and moves no unnecessary bytes, so it is finished."""
    kernel = call.slowest
    if kernel is None or kernel.dram_share is None or kernel.dram_share < NEAR or _extra(call):
        return None
    return (
        f"{kernel.name} runs at {percent(kernel.dram_share)} of the peak memory bandwidth and "
        "moves only necessary bytes. Only fewer bytes make it faster: fuse it with the op before "
        "or after it, or use a narrower dtype."
    )


def extra_traffic(call: Call) -> str | None:
    """It moves more bytes than the record needs: data is read twice, or sectors are partly used."""
    if not _extra(call):
        return None
    assert call.moved is not None
    assert call.model_bytes is not None
    times = f" {call.moved / call.model_bytes:.2g} times" if call.model_bytes else ""
    how = f"It moves{times} the necessary bytes,"
    cause = "something is read more than once, or written and read back: keep it in registers"
    cause += " or shared memory, or let blocks that share it run at the same time"
    if any(_scattered(a) for k in call.kernels for a in (k.loads, k.stores)):
        cause = "fetched sectors are only partly used: see the accesses above"
    return f"{how} {size(call.moved)}, not {size(call.model_bytes)}: {cause}."


def uncoalesced(call: Call) -> str | None:
    """The requests of a warp touch more sectors than their bytes need."""
    for kernel in call.kernels:
        for kind, access in (("loads", kernel.loads), ("stores", kernel.stores)):
            if access is not None and _scattered(access):
                return (
                    f"Global {kind} of {kernel.name} touch {access.sectors:.1f} sectors per "
                    f"request where {access.ideal:.1f} are enough: let neighbouring threads access "
                    "neighbouring addresses, through shared memory if necessary."
                )
    return None


def spills(call: Call) -> str | None:
    """The kernel uses local memory: registers are spilled, or an array is indexed at run time."""
    for kernel in call.kernels:
        if kernel.local_bytes and kernel.local_bytes > LOCAL * (call.moved or 0.0):
            traffic = f"moves {size(kernel.local_bytes)} of local memory"
        elif kernel.stack_bytes and kernel.instructions.get("local", 1):
            traffic = f"keeps up to {kernel.stack_bytes} bytes per thread in local memory"
            traffic += f" in {kernel.with_stack} of its {kernel.instances} instances"
        else:
            continue
        return (
            f"{kernel.name} {traffic} (spilled registers, or an array that is indexed at run "
            "time): unroll the loops over such arrays, keep fewer values alive, or allow more "
            "registers with smaller blocks (__launch_bounds__)."
        )
    return None


def few_blocks(call: Call) -> str | None:
    """The grid does not fill the GPU even once."""
    kernel = call.slowest
    if kernel is None or kernel.waves is None or kernel.waves >= 1:
        return None
    return (
        f"The grid of {kernel.name} fills {percent(kernel.waves)} of the GPU: split the work into "
        "more blocks, or take a larger shape."
    )


def short_kernel(call: Call) -> str | None:
    """The kernel is as short as its launch, so its code does not matter much."""
    total = sum(k.seconds or 0.0 for k in call.kernels)
    if not 0 < total < SHORT * len(call.kernels):
        return None
    return (
        f"At {seconds(total)} the launch costs about as much as the work: fuse it with its "
        "neighbours, batch it, or capture the calls in a CUDA graph."
    )


def in_cache(call: Call) -> str | None:
    """DRAM transfers fewer bytes than the call moves, because the rest stays in the L2 cache."""
    if call.moved is None or not call.model_bytes or not call.measured:
        return None
    if call.moved > call.model_bytes / EXTRA:
        return None
    return (
        f"Only {size(call.moved)} of {size(call.model_bytes)} go through DRAM, the rest stays in "
        "the L2 cache: take a larger shape to see the speed of memory."
    )


def more_in_flight(call: Call) -> str | None:
    """Warps wait for memory that is not busy, because too few bytes are in flight."""
    kernel = call.slowest
    if kernel is None or kernel.dram_share is None or kernel.dram_share >= NEAR:
        return None
    waits = kernel.stalls.get("long_scoreboard", 0.0)
    if waits < WAITING:
        return None
    head = (
        f"{kernel.name} waits for memory {percent(waits)} of the time at "
        f"{percent(kernel.dram_share)} of its bandwidth: more bytes must be in flight."
    )
    if kernel.occupancy is None or kernel.occupancy >= LOW_OCCUPANCY:
        return f"{head} Let each thread start several independent loads before it uses the first."
    lever = {
        "registers": "use fewer registers per thread",
        "shared memory": "use less shared memory per block",
        "block size": "use a block size that divides the multiprocessor's threads",
        "blocks per multiprocessor": "use larger blocks",
    }.get(kernel.limited_by or "", "give it more or more even work")
    return (
        f"{head} Raise the occupancy of {percent(kernel.occupancy)} ({lever}), or let each thread "
        "start several loads before it uses the first."
    )


def narrow_loads(call: Call) -> str | None:
    """Threads load less than 16 bytes at a time; the bandwidth is not reached, or not known."""
    kernel = call.slowest
    if kernel is None or (kernel.dram_share or 0.0) >= NEAR:
        return None
    width = kernel.load_width
    if kernel.loads is not None:
        # A warp has 32 threads and a sector 32 bytes, so sectors equal bytes per thread.
        width = round(kernel.loads.ideal)
    if width is None or width > WIDEST // 2:
        return None
    return (
        f"Threads of {kernel.name} load {width} bytes at a time: {WIDEST}-byte vectors (vec.h) "
        "need fewer instructions for the same bytes."
    )


def bank_conflicts(call: Call) -> str | None:
    """Threads of a warp access the same bank of shared memory at once."""
    kernel = call.slowest
    if kernel is None or kernel.bank_conflicts is None or kernel.bank_conflicts < CONFLICTS:
        return None
    waits = sum(kernel.stalls.get(r, 0.0) for r in ("short_scoreboard", "mio_throttle"))
    if waits < WAITING / 3:  # no warp waits for it, or the waits are unknown
        return None
    return (
        f"{percent(kernel.bank_conflicts)} of the shared memory passes of {kernel.name} are bank "
        "conflicts: pad the rows of the array, or permute (swizzle) its columns."
    )


def barriers(call: Call) -> str | None:
    """Warps wait for each other at barriers."""
    kernel = call.slowest
    if kernel is None or (waits := kernel.stalls.get("barrier", 0.0)) < WAITING:
        return None
    return (
        f"{kernel.name} spends {percent(waits)} of its time at barriers: smaller blocks, fewer "
        "barriers, or warp shuffles in their place."
    )


def arithmetic(call: Call) -> str | None:
    """The multiprocessors are busy, and the memory is not."""
    kernel = call.slowest
    if kernel is None or kernel.compute_share is None or kernel.compute_share < ARITHMETIC:
        return None
    if kernel.compute_share <= (kernel.dram_share or 0.0):
        return None
    most = next((r for r in kernel.stalls if r not in ("selected", "not_selected")), None)
    wait = f" (mostly: {STALLS[most]})" if most else ""
    return (
        f"{kernel.name} is limited by its instructions{wait}, at {percent(kernel.compute_share)} "
        "of what a multiprocessor can do: do fewer or cheaper ones (no division for indices, "
        "tensor cores for matrix products)."
    )


RULES: tuple[Rule, ...] = (
    extra_traffic,
    spills,
    uncoalesced,
    few_blocks,
    short_kernel,
    in_cache,
    more_in_flight,
    narrow_loads,
    bank_conflicts,
    barriers,
    arithmetic,
)


def _extra(call: Call) -> bool:
    if call.moved is None or call.model_bytes is None:
        return False
    slack = EXTRA_BYTES if call.measured else EXACT_BYTES
    return call.moved > call.model_bytes * EXTRA + slack


def _scattered(access: Access | None) -> bool:
    return access is not None and access.excess >= UNCOALESCED
