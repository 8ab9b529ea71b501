# SPDX-License-Identifier: Apache-2.0
"""docs/first-minutes.md is what its commands print: the same words, whatever the numbers are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "first-minutes.md"


def words(text: str) -> list[str]:
    """Lines without what differs from run to run: times, speeds, dates, digests, widths."""
    text = re.sub(r"\d[\d.,e+-]*%?|–", "#", text)
    lines = (re.sub(r"\s+", " ", line).strip() for line in text.splitlines())
    # A benchmark names the faster one, and pauses depend on the machine.
    return [line for line in lines if not re.search(r"# #.*(opforge|eager|torch\.compile)", line)]


@pytest.mark.nightly
def test_the_transcript_is_what_the_commands_print(tmp_path: Path) -> None:
    made = tmp_path / "page.md"
    subprocess.run(
        [sys.executable, ROOT / "docs" / "first_minutes.py", made], check=True, timeout=1500
    )
    assert words(made.read_text()) == words(PAGE.read_text())


def test_the_page_shows_every_step() -> None:
    commands = re.findall(r"^\$ (\w+ \w+)", PAGE.read_text(), re.MULTILINE)
    steps = ["opforge new", "opforge check", "opforge check", "opforge bench", "opforge build"]
    assert [c for c in commands if c.startswith("opforge")] == [*steps, "opforge next"]
