# SPDX-License-Identifier: Apache-2.0
"""``opforge sim --stats``: the memory traffic of each kernel against what its op must move."""

from __future__ import annotations

from typing import Any

import torch

from opforge import sim
from opforge.errors import RecordError
from opforge.op import Make, Op, as_tuple
from opforge.sim import Call, Traffic
from opforge.terminal.words import size

# Except for rounding to sectors and small workspaces, a kernel should move what its model says.
_SLACK, _SLACK_BYTES = 1.05, 4096


LEGEND = (
    "For the largest case of each op. Read and written: bytes of distinct 32-byte sectors. Asked "
    "for: bytes that all threads requested. Sectors are per request of a warp, and bank passes "
    "per request to shared memory, with the ideal in brackets. This is a model of the memory "
    "traffic, not of the time."
)


def measure(op: Op, dtype: torch.dtype) -> list[Call]:
    """The simulated calls of the largest case of ``op``, forward and backward."""
    cases = list(op.iter_cases(Make(dtype, requires_grad=dtype.is_floating_point)))
    if not cases:
        raise RecordError(f"the record of {op.name} yields no cases; there is nothing to count")
    return measure_case(op, max(cases, key=_elements))


def measure_case(op: Op, case: tuple[Any, ...]) -> list[Call]:
    """The simulated calls of ``op`` for these arguments, with a backward if any requires one.

    Tensors must be leaves.
    """
    with sim.active("race", traffic=True) as calls:
        outputs = [o for o in as_tuple(op(*case)) if o.requires_grad]
        if outputs:
            torch.autograd.backward(outputs, [torch.ones_like(o).contiguous() for o in outputs])
    return [c for c in calls if c.launches]


def verdict(call: Call) -> str:
    """A text that says whether the kernels of a call move more than they must."""
    must, moved = call.model_bytes, call.moved_bytes
    if moved > must * _SLACK + _SLACK_BYTES:
        return (
            f"moves {moved / must:.2f} times the necessary bytes: {size(moved)}, not {size(must)}"
        )
    return f"moves {size(moved)}; it must move {size(must)}"


def describe(op: Op) -> list[str]:
    """The traffic of an op's kernels as text, one for each call."""
    texts = []
    for call in measure(op, op.dtypes[0]):
        head = f"{call.function}{call.shapes} {op.dtypes[0]}: {verdict(call)}"
        lines = [head, *(line for launch in call.launches for line in _describe(launch))]
        texts.append("\n".join(lines))
    return texts


def _describe(t: Traffic) -> list[str]:
    sectors, fewest = t.read_sectors + t.write_sectors, t.read_fewest + t.write_fewest
    lines = [
        f"  {t.kernel}: {t.blocks} blocks of {t.threads} threads",
        f"    read {size(t.distinct_read)}, written {size(t.distinct_written)}, "
        f"asked for {size(t.bytes_read + t.bytes_written)}; "
        f"sectors {_ratio(sectors, fewest, t.read_requests + t.write_requests)}",
    ]
    if t.shared_requests or t.barriers:
        banks = _ratio(t.shared_passes, t.shared_fewest, t.shared_requests)
        lines.append(f"    bank passes {banks}, barriers {t.barriers}")
    return lines


def _elements(case: tuple[Any, ...]) -> int:
    return sum(a.numel() for a in case if isinstance(a, torch.Tensor))


def _ratio(got: int, ideal: int, requests: int) -> str:
    return f"{got / requests:.1f} ({ideal / requests:.1f})" if requests else "-"
