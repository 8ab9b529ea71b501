# SPDX-License-Identifier: Apache-2.0
"""Remembers what was shipped, and warns of ops without a check of what they are now."""

from __future__ import annotations

import shlex
from pathlib import Path

from opforge import discover, history
from opforge.op import Op


def shipped(ops: list[Op], what: Path) -> list[str]:
    """Remember, for ``opforge next``, what was made of ops.

    Returns a line for each op that was never checked, has changed since, or failed.
    """
    for op in ops:
        history.keep(op, "ship", {"what": str(what)})
    return [text for op in ops if (text := _warning(op))]


def _warning(op: Op) -> str:
    last = history.last(op, "check")
    if last is None:
        problem = "was never checked on this machine"
    elif not last["current"]:
        problem = "has changed since its last check"
    elif last["failed"] or last["impossible"]:
        problem = "did not pass its last check"
    else:
        return ""
    return f"warning: {op.name} {problem}; run: opforge check {shlex.quote(discover.where(op))}"
