# SPDX-License-Identifier: Apache-2.0
"""The headers keep to the rooms that their index describes."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import pytest
from helpers import PATIENCE
from op_cases import nightly_but

from opforge.build import toolchain
from opforge.build.cpu import cpu_flags
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


# By day one of each room.
@nightly_but(*{room(h): h for h in ALONE}.values(), of=ALONE)
def test_a_header_compiles_alone(name):
    on_cpu = name.startswith("cpu/") or "/cpu" in name
    flags = toolchain.cpu_level(platform.machine(), cpu_flags()) if on_cpu else SIMULATED
    command = [toolchain.find_cxx().path, "-std=c++20", "-fsyntax-only", f"-I{INCLUDE_DIR}", *flags]
    source = f"#include <opforge/{name}>\n"
    done = subprocess.run(
        [*command, "-x", "c++", "-"], input=source, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr


def test_tests_include_headers_that_are_there():
    tests = Path(__file__).parents[1]
    sources = [p for p in tests.rglob("*") if p.suffix in (".py", ".h", ".cuh", ".cu", ".cpp")]
    found = {
        (str(source.relative_to(tests)), header)
        for source in sources
        for header in re.findall(r"#include <opforge/([\w./]+)>", source.read_text())
    }
    made_up = {("docs/test_docs.py", name) for name in ("b.h", "x/b.h", "x/a.cuh", "x/host.h")}
    assert made_up < found
    assert len(found) > 100
    assert not [pair for pair in sorted(found - made_up) if pair[1] not in HEADERS]


VISITOR = FOLDER / "algorithms" / "row_visitor.cuh"


def visitor_error(visitor: str) -> str:
    """What the compiler says of a visitor that is given to map_rows; nothing if it takes it."""
    source = f"""
        #include <opforge/algorithms/rows.cuh>
        namespace opforge {{
        {visitor}
        void run(const DivideBySum<float>& visitor, cudaStream_t stream) {{
          map_rows<4>(8, 64, false, visitor, stream);
        }}
        }}
    """
    command = [toolchain.find_cxx().path, "-std=c++20", "-fsyntax-only", f"-I{INCLUDE_DIR}"]
    done = subprocess.run(
        [*command, *SIMULATED, "-x", "c++", "-"], input=source, capture_output=True, text=True
    )
    return done.stderr


def example() -> str:
    """The visitor in the comment of the concept."""
    comment = VISITOR.read_text().split("// A visitor that divides each row by its sum:\n")[1]
    return comment.split("template <class V")[0].replace("//", "")


def test_the_visitor_in_the_comment_of_the_concept_is_one():
    assert "struct DivideBySum" in example()
    assert visitor_error(example()) == ""


@pytest.mark.parametrize(
    ("has", "has_not", "named"),
    [
        ("kAnyRow", "kSomeRows", "kAnyRow"),
        (": WithoutParams, HeldAsUsual", ": HeldAsUsual", "Params"),
        (": WithoutParams, HeldAsUsual", ": WithoutParams", "Holds"),
        ("T* first(", "T* begin(", "visitor.first(cursor)"),
        ("Loaded<N> load(", "Loaded<N> fetch(", "load<N>(cursor, col)"),
        ("A settle(", "A total(", "visitor.settle(cursor, each, total)"),
        ("void write(", "void put(", "visitor.write(cursor, col"),
    ],
)
def test_a_visitor_without_a_member_fails_with_the_concepts_name(has, has_not, named):
    said = visitor_error(example().replace(has, has_not))
    assert "RowVisitor" in said
    assert named in said
