# SPDX-License-Identifier: Apache-2.0
"""The row that puts every tensor against a page that cannot be accessed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from opforge.check.row import NotRun, Trial, row
from opforge.check.situation import Situation
from opforge.errors import BuildError, CacheError, KernelUnavailable, ToolchainError
from opforge.op import MAY_OVERWRITE, Backward
from opforge.truth import guard, inputs

_ODD, _EXACT = 33, 64  # 64 is a multiple of torch's alignment in every dtype
_SMALL = 5  # the size of the other dims


@row(
    74,
    "guard-pages",
    "c s",
    "There is usually other memory past the end of a tensor. A read there may change no result, "
    "and a write corrupts another tensor. Nor may an op write to its inputs, not even for a "
    "moment.",
    star=True,
)
def guard_pages(t: Trial) -> None:
    """No access before the start or past the end, and no write to what the op is given."""
    try:
        guard.library()
    except (ToolchainError, BuildError, CacheError, KernelUnavailable) as error:
        raise NotRun(str(error)) from None
    for base in _situations(t):
        gradient = base.has_gradient()
        for side in guard.SIDES:
            s = t.trying(_against_pages(base, side))
            s.forward()
            if gradient:
                s.backward(inputs.gradient_against_page)


def _situations(t: Trial) -> Iterator[Situation]:
    """The record's cases, and those of each kind in other sizes and with wider rows."""
    yield from t.own()
    for dtype in t.dtypes:
        for base in t.kinds(dtype):
            for chosen in base.sizes():
                for size in (_ODD, _EXACT):
                    if s := t.resized(base, chosen, size, _SMALL):
                        yield s
            wide = base
            for name, tensor in base.tensors.items():
                if tensor.dim():
                    wide = wide.change(name, inputs.padded)
            yield wide


def _against_pages(base: Situation, side: guard.Side) -> Situation:
    """``base`` with all tensors of the call, and those that it allocates, against such pages."""
    details = base.op.backward
    overwrites = details.overwrites if isinstance(details, Backward) else {}
    s = base
    for name in base.tensors:
        allowed = name in overwrites and bool(base.values[overwrites[name]])
        given = (side, name, True) if allowed else (side, name)
        s = s.change(name, inputs.against_page, *given)
    # A backward that may overwrite what was saved writes there.
    may = any(a.name == MAY_OVERWRITE for schema in base.op.functions for a in schema.args)
    s.place = replace(base.place, guard=side, keep_saved=not may)
    return s
