# SPDX-License-Identifier: Apache-2.0
"""What this machine's CPU can do."""

from __future__ import annotations

import functools
import re
from pathlib import Path


@functools.cache
def cpu_flags() -> str:
    """The instruction sets of this CPU, as Linux names them."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    match = re.search(r"^flags\s*:\s*(.*)$", text, re.MULTILINE)
    return match[1] if match else ""
