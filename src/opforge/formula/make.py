# SPDX-License-Identifier: Apache-2.0
"""``opforge new NAME --from FILE:FUNCTION``: reads, writes, and says what was chosen."""

from __future__ import annotations

from pathlib import Path

from opforge.formula import example, source
from opforge.formula.save import Choice
from opforge.formula.write import folder
from opforge.new.folder import write_files
from opforge.new.request import check_op_name


def make(
    name: str, where: str, shapes: str | None, wanted: str | None, into: Path, force: bool
) -> tuple[list[Path], list[str]]:
    """Write the folder of an op. Returns its files, and lines that say what was chosen."""
    check_op_name(name)
    found = source.locate(where)
    given = example.resolve(found, shapes)
    made = folder.write(name, found, given, wanted, into)
    files = write_files(into / name, made.files, force)
    return files, _said(given, made)


def _said(given: example.Example, made: folder.Written) -> list[str]:
    lines = []
    if given.assumed:
        lines.append(f"assumed {', '.join(given.assumed)}; --example says otherwise")
    for number in given.fixed:
        lines.append(f"{number} is {given.fixed[number]!r} in the kernels, and no argument")
    lines += [f"kernels of {k}" for k in made.kernels]
    if len(made.choices) > 1 and made.chosen is not None:
        lines += ["", *_table(made.choices, made.chosen)]
    for what, reason in made.unmapped:
        place = f" (line {reason.line})" if reason.line else ""
        how = "derived from" if what == "the gradient" else "computed by"
        lines.append(f"no kernel for {what}{place}: {reason.reason}. It is {how} the reference")
    return lines


def _table(choices: list[Choice], chosen: Choice) -> list[str]:
    """The ways to compute the backward, and which was taken."""
    rows = [("kept for the backward", "bytes read, 16 bits", "operations", "")]
    for choice in choices:
        kept = ", ".join(choice.kept) or "nothing"
        mark = "taken" if choice is chosen else f"--save {','.join(choice.kept)}"
        rows.append((kept, str(choice.bytes_read), str(choice.operations), mark))
    widths = [max(len(r[i]) for r in rows) for i in range(3)]
    return [
        "  ".join([*(c.ljust(w) for c, w in zip(r, widths, strict=False)), r[3]]).rstrip()
        for r in rows
    ]
