# SPDX-License-Identifier: Apache-2.0
"""What the last check, benchmark, profile, build and shipment of an op gave.

It is kept in the cache directory. ``opforge next`` reads it, and ``ship/checked.py`` for its
warnings. It is a help, not a proof: where it cannot be written or read, there is no history.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from opforge import discover
from opforge.build import cache
from opforge.errors import CacheError
from opforge.op import Op


def keep(op: Op, step: str, facts: dict[str, Any]) -> None:
    """Remember the result of a step of an op, in place of the last one.

    Steps are "check", "bench", "profile", "build" and "ship".
    """
    with contextlib.suppress(OSError, CacheError):
        file = _file(op)
        file.parent.mkdir(mode=0o700, exist_ok=True)
        known = _read(file) | {step: {**facts, "digest": discover.digest_of(op), "at": time.time()}}
        cache.replace_text(file, json.dumps(known))


def last(op: Op, step: str) -> dict[str, Any] | None:
    """The facts of a step's last result, or None.

    It adds ``current``: whether the op's files are the same as then.
    """
    with contextlib.suppress(OSError, CacheError):
        facts = _read(_file(op)).get(step)
        if facts is not None:
            return {**facts, "current": facts["digest"] == discover.digest_of(op)}
    return None


def _file(op: Op) -> Path:
    folder = hashlib.sha256(os.fsencode(str(op.folder))).hexdigest()[:16]
    return cache.root() / "history" / f"{op.name}-{folder}.json"


def _read(file: Path) -> dict[str, Any]:
    try:
        known = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
