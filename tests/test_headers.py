# SPDX-License-Identifier: Apache-2.0
"""The headers keep to the rooms that their index describes."""

from __future__ import annotations

import platform
import re
import subprocess

import pytest

from opforge.build import toolchain
from opforge.build.plan import INCLUDE_DIR
from opforge.build.targets import SIM_INCLUDE_DIR

FOLDER = INCLUDE_DIR / "opforge"
INDEX = (FOLDER / "README.md").read_text()
HEADERS = sorted(
    str(p.relative_to(FOLDER)) for p in FOLDER.rglob("*") if p.suffix in (".h", ".cuh")
)
# What each room may include, from the index's first table.
ALLOWED = {
    room.rstrip("/"): set(re.split(r", ", may))
    for room, may in re.findall(r"^\| `([\w./]+)` \| [^|]* \| ([^|]*?) \|$", INDEX, re.MULTILINE)
}


def room(header: str) -> str:
    return header.split("/")[0]


def test_the_index_lists_every_header_and_no_other():
    listed = re.findall(r"^\| `([\w./]+\.c?u?h)` \| ", INDEX, re.MULTILINE)
    assert sorted(set(listed)) == HEADERS


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_includes_only_what_its_room_may(header):
    allowed = ALLOWED[room(header)]
    if "everything above" in allowed:
        allowed = set(ALLOWED)
    text = (FOLDER / header).read_text()
    for included in re.findall(r'^#include [<"]opforge/([^>"]+)[>"]', text, re.MULTILINE):
        assert room(included) in allowed, f"{header} includes {included}"
        assert (
            not (header.endswith(".h") and included.endswith(".cuh"))
            or "host.h" in header
            or (room(header) == "host")
        ), f"{header} is a .h but includes device code"


@pytest.mark.parametrize("header", [h for h in HEADERS if h != "host.h"])
def test_only_the_binding_includes_torch(header):
    assert not re.search(r"#include <(torch|ATen|c10)/", (FOLDER / header).read_text())


SIMULATED = ["-DUSE_CUDA", "-DOPFORGE_SIM", f"-I{SIM_INCLUDE_DIR}"]
ALONE = [h for h in HEADERS if "host" not in h]  # those need torch, and a record's signatures


@pytest.mark.parametrize("header", ALONE)
def test_a_header_compiles_alone(header):
    on_cpu = header.startswith("cpu/") or "/cpu" in header
    flags = toolchain.cpu_level(platform.machine(), toolchain.cpu_flags()) if on_cpu else SIMULATED
    command = [toolchain.find_cxx().path, "-std=c++20", "-fsyntax-only", f"-I{INCLUDE_DIR}", *flags]
    source = f"#include <opforge/{header}>\n"
    done = subprocess.run(
        [*command, "-x", "c++", "-"], input=source, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
