# SPDX-License-Identifier: Apache-2.0
"""Writes every generated page: `python docs/generate.py`.

The input is the records, the docs.toml files of op folders, the check reports in docs/scores and
the results in benchmarks/results, tests/mutation and tests/sensitivity.
`--check` writes nothing: it names the files that would change, and exits with 1 if there are any.
"""

from __future__ import annotations

import argparse
import sys

from pages import (
    agreement,
    benchmarks,
    cpu,
    gallery,
    index,
    ladder,
    mutants,
    op_page,
    scores,
    sensitivity,
)
from pages.data import ROOT, load

# Everything in these folders is generated: files that are no longer made are removed.
OWNED = ("docs/ops/*.md", "docs/gallery/*.svg")
START, END = "<!-- made by docs/generate.py: {} -->\n", "<!-- end -->\n"


def pages() -> dict[str, str]:
    """The text of every generated file, by its path."""
    data = load()
    pictures = gallery.pictures(data)
    rungs = ladder.picture(data)
    return {
        "docs/scores.md": scores.page(),
        "docs/mutants.md": mutants.page(),
        "docs/sensitivity.md": sensitivity.page(),
        "docs/agreement.md": agreement.page(data),
        "docs/benchmarks.md": benchmarks.page(data, pictures),
        "docs/cpu.md": cpu.page(),
        **{f"docs/gallery/{p.name}.svg": p.text for p in [*pictures, *([rungs] if rungs else [])]},
        "docs/ladder.md": _filled("docs/ladder.md", ladder=ladder.part(data)),
        **{f"docs/ops/{name}.md": op_page.page(data, op) for name, op in data.ops.items()},
        "docs/README.md": _filled("docs/README.md", ops=index.table_of_ops(data)),
        "README.md": _filled(
            "README.md",
            ops=index.kinds_of_ops(data),
            proof=index.proof(data),
            speed=benchmarks.readme_part(data),
        ),
    }


def _filled(path: str, **parts: str) -> str:
    """A page written by hand with its generated parts, which are between comments, replaced."""
    text = (ROOT / path).read_text(encoding="utf-8")
    for name, part in parts.items():
        before, start, rest = text.partition(START.format(name))
        _, end, after = rest.partition(END)
        if not start or not end:
            sys.exit(f"{path} lacks {START.format(name).strip()} or {END.strip()} after it")
        text = before + start + part.rstrip() + "\n" + end + after
    return text


def main() -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing, name what would change"
    )
    check = parser.parse_args().check
    made = pages()
    there = {f"{p.relative_to(ROOT)}" for pattern in OWNED for p in ROOT.glob(pattern)}
    changed = [n for n, text in made.items() if not _is(n, text)] + sorted(there - set(made))
    for name in changed:
        print(name)
        if check:
            continue
        if name in made:
            (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / name).write_text(made[name], encoding="utf-8")
        else:
            (ROOT / name).unlink()
    return 1 if check and changed else 0


def _is(name: str, text: str) -> bool:
    path = ROOT / name
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
