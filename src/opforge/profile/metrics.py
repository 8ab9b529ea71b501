# SPDX-License-Identifier: Apache-2.0
"""The metrics that Nsight Compute collects, and how they become facts about a kernel."""

from __future__ import annotations

import re

from opforge.profile.facts import Access, Kernel
from opforge.profile.raw import Launch

_SECTOR = 32  # bytes

# Reasons why a warp waits, in the words of the report and of docs/profile.md.
STALLS = {
    "long_scoreboard": "waiting for global or local memory",
    "short_scoreboard": "waiting for shared memory",
    "lg_throttle": "the queue of global memory requests is full",
    "mio_throttle": "the queue of shared memory requests is full",
    "tex_throttle": "the texture queue is full",
    "barrier": "waiting at a barrier",
    "membar": "waiting at a memory fence",
    "wait": "waiting for a fixed latency",
    "math_pipe_throttle": "an arithmetic unit is busy",
    "gmma": "waiting for the tensor cores",
    "branch_resolving": "waiting for a branch",
    "dispatch_stall": "the dispatcher holds it back",
    "no_instruction": "waiting for its next instruction to be fetched",
    "imc_miss": "waiting for a constant",
    "drain": "waiting for its last stores to leave",
    "sleeping": "asleep",
    "misc": "another reason",
    "not_selected": "ready, but another warp went first",
    "selected": "issuing",
}
WORKING = ("selected", "not_selected")  # not stalls: the multiprocessor has work

_LIMITS = {
    "launch__occupancy_limit_registers": "registers",
    "launch__occupancy_limit_shared_mem": "shared memory",
    "launch__occupancy_limit_warps": "block size",
    "launch__occupancy_limit_blocks": "blocks per multiprocessor",
}
_SINGLE = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__maximum_warps_per_active_cycle_pct",
    "launch__registers_per_thread",
    "launch__shared_mem_per_block_static",
    "launch__shared_mem_per_block_dynamic",
    "launch__waves_per_multiprocessor",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",
)


def wanted(capability: tuple[int, int]) -> list[str]:
    """The metrics to ask for on a GPU of this compute capability."""
    names = [*_SINGLE, *_LIMITS]
    for way in ("ld", "st"):
        names.append(f"l1tex__t_requests_pipe_lsu_mem_global_op_{way}.sum")
        names.append(f"l1tex__t_sectors_pipe_lsu_mem_global_op_{way}.sum")
        names.append(f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{way}.pct")
    # Only Hopper has this stall reason, for asynchronous matrix instructions.
    reasons = [r for r in STALLS if r != "gmma" or capability[0] == 9]
    return [*names, *map(_stall, reasons)]


def read(launch: Launch) -> Kernel:
    """The facts from the metrics of a launch. Missing metrics give None."""
    get = launch.metrics.get
    return Kernel(
        name=short_name(launch.kernel),
        grid=launch.grid,
        block=launch.block,
        seconds=get("gpu__time_duration.sum"),
        read=get("dram__bytes_read.sum"),
        written=get("dram__bytes_write.sum"),
        dram_share=get("dram__throughput.avg.pct_of_peak_sustained_elapsed"),
        compute_share=get("sm__throughput.avg.pct_of_peak_sustained_elapsed"),
        tensor_share=get("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"),
        occupancy=get("sm__warps_active.avg.pct_of_peak_sustained_active"),
        occupancy_possible=get("sm__maximum_warps_per_active_cycle_pct"),
        limited_by=_limit(launch.metrics),
        registers=_whole(get("launch__registers_per_thread")),
        waves=get("launch__waves_per_multiprocessor"),
        stalls=_stalls(launch.metrics),
        loads=_access(launch.metrics, "ld"),
        stores=_access(launch.metrics, "st"),
        bank_conflicts=_share(
            get("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"),
            get("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"),
        ),
        local_bytes=_sum(
            get("l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum"),
            get("l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum"),
            times=_SECTOR,
        ),
        shared_bytes=_whole(
            _sum(
                get("launch__shared_mem_per_block_static"),
                get("launch__shared_mem_per_block_dynamic"),
            )
        ),
        metrics=launch.metrics,
    )


def short_name(signature: str) -> str:
    """The name in the source: ``f`` for ``void ns::f<float, 2>(Params<float>)``."""
    text = re.sub(r"\(anonymous namespace\)|<unnamed>", "unnamed", signature)
    text = re.sub(r"operator\s*\(\)", "call", text)
    while (flat := re.sub(r"<[^<>]*>|\([^()]*\)", "", text)) != text:
        text = flat
    return text.split("[")[0].split()[-1].split("::")[-1] if text.split() else signature


def _stall(reason: str) -> str:
    return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"


def _stalls(metrics: dict[str, float]) -> dict[str, float]:
    """Shares of a warp's time, largest first. The ratios add up to the time between two issues."""
    found = {r: metrics[_stall(r)] for r in STALLS if _stall(r) in metrics}
    total = sum(found.values())
    shares = {r: v / total for r, v in found.items()} if total else {}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _limit(metrics: dict[str, float]) -> str | None:
    """What limits the blocks per multiprocessor most, or None if occupancy can be full."""
    possible = metrics.get("sm__maximum_warps_per_active_cycle_pct")
    limits = {words: metrics[name] for name, words in _LIMITS.items() if name in metrics}
    if not limits or (possible is not None and possible > 0.99):
        return None
    return min(limits, key=lambda words: limits[words])


def _access(metrics: dict[str, float], way: str) -> Access | None:
    requests = metrics.get(f"l1tex__t_requests_pipe_lsu_mem_global_op_{way}.sum")
    sectors = metrics.get(f"l1tex__t_sectors_pipe_lsu_mem_global_op_{way}.sum")
    used = metrics.get(f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{way}.pct")
    if not requests or not sectors or used is None:
        return None
    each = sectors / requests
    # Threads that read the same bytes can use more bytes than a sector has.
    return Access(each, max(1.0, each * min(used, 1.0)))


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _sum(*values: float | None, times: float = 1) -> float | None:
    known = [v for v in values if v is not None]
    return times * sum(known) if known else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
