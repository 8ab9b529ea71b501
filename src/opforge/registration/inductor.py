# SPDX-License-Identifier: Apache-2.0
"""Makes the ops known to Inductor before it meets them.

Inductor takes an op that it has no lowering for as it is, and first writes a log line with the
op's arguments. Up to torch 2.11 it makes that text whether or not anybody reads the log, and an
argument's text holds the texts of all its own arguments: after a few layers of such ops a compile
does not end. An op that was named to Inductor beforehand is lowered in the same way, without the
line.

Inductor takes a second to import, so an op is only noted down when it is registered. All that are
noted down are named as soon as a fake kernel runs and Inductor is there, which is before it lowers
the graph in which that fake kernel ran.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch

_unnamed: list[Any] = []  # overloads that Inductor does not know yet


def note(overload: Any) -> None:
    """Remember an overload until Inductor is imported."""
    _unnamed.append(overload)


def name_ops() -> None:
    """Name all noted ops to Inductor, if it is imported; every fake kernel calls this."""
    lowering = sys.modules.get("torch._inductor.lowering")
    # A module that is just being imported may lack its functions yet.
    if not _unnamed or not hasattr(lowering, "make_fallback"):
        return
    while _unnamed:
        # These are private parts of torch. Where they differ, Inductor still takes the op as it is.
        with contextlib.suppress(Exception):
            _name(lowering, _unnamed.pop())


def _name(lowering: Any, overload: Any) -> None:
    """What Inductor itself does about an op that it does not know."""
    if overload in lowering.lowerings:
        return
    tag = torch._library.utils.get_layout_constraint_tag(overload, with_default=True)
    constraint = lowering.tag_to_layout_constraint(tag)
    lowering.make_fallback(overload, layout_constraint=constraint, warn=False)
