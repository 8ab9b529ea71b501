# SPDX-License-Identifier: Apache-2.0
"""`opforge check` as a user calls it, for the tests of the check."""

from __future__ import annotations

import os
import subprocess
import sys

from helpers import PATIENCE


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opforge", "check", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "COLUMNS": "160"},
    )
