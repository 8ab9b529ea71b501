# SPDX-License-Identifier: Apache-2.0
"""``opforge sim --stats``: what each kernel asks of memory, beside what its op must move."""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table

from opforge import sim
from opforge.check.cases import differentiable
from opforge.op import Make, Op, as_tuple
from opforge.sim import Call

# Rounding to sectors and small workspaces aside, a kernel should not move more than its model.
_SLACK, _SLACK_BYTES = 1.05, 4096


LEGEND = (
    "read, written: bytes of distinct 32-byte sectors. asked: by all threads together. sectors: "
    "per request of a warp. banks: passes per shared-memory request. In brackets the ideal. "
    "This is a model of traffic, not of time."
)


def measure(op: Op, dtype: torch.dtype) -> list[Call]:
    """Every simulated call that the largest case of ``op`` makes, forward and backward."""
    cases = op.iter_cases(Make(dtype, requires_grad=True))
    case = max(cases, key=lambda c: sum(t.numel() for t in differentiable(c)))
    with sim.active("race", traffic=True) as calls:
        outputs = as_tuple(op(*case))
        torch.autograd.backward(outputs, [torch.ones_like(o).contiguous() for o in outputs])
    return [c for c in calls if c.launches]


def verdict(call: Call) -> str:
    """Whether the kernels of a call move more than they must, in words."""
    must, moved = call.model_bytes, call.moved_bytes
    if moved > must * _SLACK + _SLACK_BYTES:
        return f"moves {moved / must:.2f} times what it must: {_size(moved)}, not {_size(must)}"
    return f"moves {_size(moved)}; it must move {_size(must)}"


def show(op: Op, out: Console) -> None:
    """Print the traffic of an op's kernels."""
    dtype = op.dtypes[0]
    for call in measure(op, dtype):
        out.print(f"{call.function}{call.shapes} {dtype}: {verdict(call)}", highlight=False)
        table = Table(box=None, pad_edge=False)
        table.add_column("  kernel")
        for column in ("grid", "read", "written", "asked", "sectors", "banks", "barriers"):
            table.add_column(column, justify="right", no_wrap=True)
        for t in call.launches:
            sectors, fewest = t.read_sectors + t.write_sectors, t.read_fewest + t.write_fewest
            table.add_row(
                f"  {t.kernel}",
                f"{t.blocks}×{t.threads}",
                _size(t.distinct_read),
                _size(t.distinct_written),
                _size(t.bytes_read + t.bytes_written),
                _ratio(sectors, fewest, t.read_requests + t.write_requests),
                _ratio(t.shared_passes, t.shared_fewest, t.shared_requests),
                str(t.barriers),
            )
        out.print(table, highlight=False)


def _ratio(got: int, ideal: int, requests: int) -> str:
    return f"{got / requests:.1f} ({ideal / requests:.1f})" if requests else "-"


def _size(count: int) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000  # type: ignore[assignment]
    return f"{count:.3g} GB"
