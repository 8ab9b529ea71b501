# SPDX-License-Identifier: Apache-2.0
"""Whether the CUDA code of an op has changed since it was measured.

The code of an op is its ``*.cuh`` files, those of opforge that its host code includes, and every
header that they include, directly or not. Comments, includes, line breaks, file names and the order
of the code are ignored, so moving, splitting or reformatting files is not a change. The measured
code comes from git, today's from the working tree, so that a commit changes nothing.
"""

from __future__ import annotations

import functools
import io
import json
import posixpath
import re
import subprocess
import tarfile
from collections import Counter

from opforge.bench.results import OURS, Results, Row
from opforge.report.series import grouped

from .data import ROOT, Data
from .text import prose, table

PACKAGE = "src/opforge"
UNKNOWN, NONE, SAME = "unknown", "–", "no, same instructions"
_CODE = (".cu", ".cuh", ".h")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_SIMULATED = re.compile(
    r"^#\s*if (?:defined\()?OPFORGE_SIM\)?\n[^#]*?(?:^#\s*else\n([^#]*?))?^#\s*endif.*?$",
    re.DOTALL | re.MULTILINE,
)
_PLUMBING = ("host.h", "launch.h", "text.h")  # calls of the CUDA runtime, and texts of errors
_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"].*$', re.MULTILINE)

Files = dict[str, str]  # path in the repository -> text


def part(data: Data) -> str:
    """The table: what each op was measured on, and how much of its code is different today."""
    lines = []
    same, every = 0, 0
    for name in data.ops:
        rows = _ours(data.results.of(name))
        for commit, members in grouped(rows, lambda r: _commit(data, r)).items():
            days = sorted({str(data.results.runs[r.run].get("date", "?"))[:10] for r in members})
            changed = change(name, commit)
            same += len(members) if changed in ("no", SAME) else 0
            every += len(members)
            lines.append([name, commit, ", ".join(days), len(members), changed])
    return prose(
        "Each line is a commit at which workloads of an op were measured. The last column says how "
        "much of the op's kernel code is different today. Kernel code is the op's `*.cuh` files, "
        "those of opforge that its host code includes, and every opforge header they include, "
        "counted in statements. Comments, formatting, file "
        "names, error texts and code for the simulator do not count. A renamed identifier does "
        "count, and so does a changed header function that the op does not call, unless "
        "`benchmarks/machine_code.py` has shown that the code compiles to the same instructions.",
        f"{same} of {every} workloads were measured with today's kernel code. "
        f'"{NONE}": the op has no kernel code of its own. "{UNKNOWN}": the git history is missing.',
    ) + table(["op", "commit", "measured", "workloads", "changed since"], lines, 3)


def _ours(results: Results) -> list[Row]:
    return [r for r in results.rows if r.implementation == OURS and r.us is not None]


def _commit(data: Data, row: Row) -> str:
    return str(data.results.runs[row.run].get("commit") or UNKNOWN)


def change(name: str, commit: str) -> str:
    """``no``, how much changed, or ``unknown``."""
    then, now = _at(commit), _now()
    if then is None:
        return UNKNOWN
    folder = f"{PACKAGE}/ops/{name}"
    before, after = _statements(then, folder), _statements(now, folder)
    if not before and not after:
        return NONE
    different = max((before - after).total(), (after - before).total())
    if not different:
        return "no"
    if _same_instructions(name, folder, before, after):
        return SAME
    share = different / max(before.total(), 1)
    return "less than 1%" if share < 0.01 else f"{share:.0%}"


def _same_instructions(name: str, folder: str, before: Counter[str], after: Counter[str]) -> bool:
    """Whether commits that have this code are known to compile to the same instructions."""
    known = {commit: digests.get(name) for commit, digests in _machine_code().items()}
    code = {commit: _statements(_at(commit) or {}, folder) for commit in known}
    old = {known[commit] for commit in known if code[commit] == before}
    new = {known[commit] for commit in known if code[commit] == after}
    return bool(old & new - {None})


@functools.cache
def _machine_code() -> dict[str, dict[str, str]]:
    """What benchmarks/machine_code.py noted, by commit and op."""
    file = ROOT / "benchmarks" / "machine_code.json"
    return json.loads(file.read_text()) if file.exists() else {}


def _statements(files: Files, folder: str) -> Counter[str]:
    """The code of an op, without its order."""
    code = "\n".join(_reachable(files, folder).values())
    code = _SIMULATED.sub(r"\1", _INCLUDE.sub("", _COMMENT.sub("", code)))
    found = (" ".join(s.split()) for s in re.split(r"[;{}]", code.replace("#pragma once", "")))
    return Counter(s for s in found if re.search(r"\w", s) and not s.startswith("namespace"))


def _reachable(files: Files, folder: str) -> Files:
    """The CUDA files of an op and all they include."""
    own = [path for path in files if posixpath.dirname(path) == folder]
    host = [path for path in own if path.endswith(".cu")]
    todo = [path for path in own if path.endswith(".cuh")]
    seen = set[str]()
    while host:  # leads to the kernels that several ops share
        path = host.pop()
        if path in seen:
            continue
        seen.add(path)
        if path.endswith(".cuh"):
            todo.append(path)
        else:
            host += _included(files, path)
    found: Files = {}
    while todo:
        path = todo.pop()
        if path in found or posixpath.basename(path) in _PLUMBING:
            continue
        found[path] = files[path]
        todo += _included(files, path)
    return found


def _included(files: Files, path: str) -> list[str]:
    """The files of the package that one includes."""
    found = []
    for name in _INCLUDE.findall(files[path]):
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
        found += [p for p in (beside, f"{PACKAGE}/include/{name}") if p in files][:1]
    return found


@functools.cache
def _now() -> Files:
    paths = [p for p in (ROOT / PACKAGE).rglob("*") if p.suffix in _CODE]
    return {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in paths}


@functools.cache
def _at(commit: str) -> Files | None:
    """The sources at a commit; None where git or the commit is missing."""
    commit = commit.removesuffix("-dirty")
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", commit, PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    files: Files = {}
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        for member in archive:
            if member.isfile() and member.name.endswith(_CODE):
                content = archive.extractfile(member)
                assert content is not None
                files[member.name] = content.read().decode("utf-8")
    return files
