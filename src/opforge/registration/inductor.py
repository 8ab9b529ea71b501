# SPDX-License-Identifier: Apache-2.0
"""Registers the ops as fallbacks with Inductor, so that it does not log their arguments.

Inductor calls an op without a lowering as it is, and writes a log line with the op's arguments. Up
to torch 2.11 it makes that text even if logging is off. The text of an argument contains the texts
of its own arguments, so after a few layers of such ops a compilation does not end. Inductor treats
an op that is already registered as a fallback in the same way, but without the log line.

Importing Inductor takes a second, so registering an op only puts it on a list. The list is passed
to Inductor when a fake kernel runs and Inductor has been imported. That is before Inductor lowers
the graph in which the fake kernel ran.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch

_unnamed: list[Any] = []  # overloads that are not registered with Inductor yet


def note(overload: Any) -> None:
    """Put an overload on the list until Inductor is imported."""
    _unnamed.append(overload)


def name_ops() -> None:
    """Register the listed ops with Inductor if it is imported. Every fake kernel calls this."""
    lowering = sys.modules.get("torch._inductor.lowering")
    # A module that is still being imported may not have its functions yet.
    if not _unnamed or not hasattr(lowering, "make_fallback"):
        return
    while _unnamed:
        # These are private parts of torch. If they differ, Inductor falls back to the op by itself.
        with contextlib.suppress(Exception):
            _name(lowering, _unnamed.pop())


def _name(lowering: Any, overload: Any) -> None:
    """Register a fallback, as Inductor itself does for an op without a lowering."""
    if overload in lowering.lowerings:
        return
    tag = torch._library.utils.get_layout_constraint_tag(overload, with_default=True)
    constraint = lowering.tag_to_layout_constraint(tag)
    lowering.make_fallback(overload, layout_constraint=constraint, warn=False)
