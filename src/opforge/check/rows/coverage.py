# SPDX-License-Identifier: Apache-2.0
"""Rows about code that no ordinary case reaches."""

from __future__ import annotations

import platform

from opforge.build import compile
from opforge.build.plan import plan
from opforge.check.place import Place
from opforge.check.row import Fault, NotApplicable, NotRun, Trial, last_words, row
from opforge.check.rows.layouts import poison
from opforge.check.search import recipe as recipes
from opforge.check.search import stored
from opforge.check.search.search import Search
from opforge.errors import ToolchainError
from opforge.truth.coverage import lines

_SHOWN = 12  # stretches of code that a report names


@row(
    0,
    "found-cases",
    "c s g",
    "A search has found cases that reach code that others do not: sizes the code compares with, "
    "rare layouts, frozen arguments. Each is compared with the truth in float64.",
)
def found_cases(t: Trial) -> None:
    """Outputs and gradients of every found case are near the truth."""
    _refuse(t)
    tried = 0
    for s, recipe in t.found():
        last_words(s.describe())
        with poison(t.place.device):  # a special path may have a workspace of its own
            recipes.compare(s, recipe)
        tried += 1
    if not tried:
        raise NotApplicable("no cases were found or stored")
    t.note = f"{tried} cases"


@row(
    73,
    "coverage",
    "c s",
    "Code that no case reaches has not been checked, whatever else passes.",
    star=True,
)
def coverage(t: Trial) -> None:
    """Every block of the kernels and their host code is reached, or the source says why not."""
    _refuse(t)
    search = Search(t.op, t.place.name, t.seed, last_words)
    search.replay(t.recipes())
    reached = search.reached()
    if not reached.points:
        raise NotRun("the op's library has no debug information about its sources")
    own, headers = reached.of(lines.is_own), reached.of(lambda file: not lines.is_own(file))
    t.coverage = {
        "share": own.share,
        "blocks": len(own.points),
        "named": len(own.named),
        "missing": own.texts(),
        "instances": reached.instances[0] / max(reached.instances[1], 1),
        "with headers": reached.share,
        "headers": headers.by_file(),
    }
    texts = own.texts()
    t.note = f"{own.share:.0%} of {len(own.points)} blocks"
    t.note += f" ({reached.share:.0%} of {len(reached.points)} with opforge's headers)"
    if own.named:
        t.note += f", {len(own.named)} marked as unreached"
    if texts:
        listed = "; ".join(texts[:_SHOWN]) + (" …" if len(texts) > _SHOWN else "")
        t.note += f"; not reached: {listed}"
        if t.full:
            raise Fault(
                "\n".join(f"not reached: {text}" for text in texts[:_SHOWN])
                + "\nadd a case to the record that reaches it, delete the code, or say why no test "
                "can reach it: `// unreached: <reason>`"
            )


@row(
    0,
    "narrowing",
    "c s",
    "A 64-bit size or offset put into a 32-bit variable wraps around beyond 2^31 elements, for "
    "which few tests have memory.",
)
def narrowing(t: Trial) -> None:
    """No kernel or host code puts a 64-bit integer into 32 bits without an explicit cast."""
    _refuse(t)
    target = Place(t.place.name, mode="cover").target
    built = compile.build([plan(t.op, target.name)])[0]
    if places := built.manifest["narrowing"]:
        listed = "\n".join(places[:_SHOWN]) + ("\n…" if len(places) > _SHOWN else "")
        raise Fault(
            f"{listed}\nkeep it in int64_t, or cast it explicitly if it is known to fit: int(…)"
        )
    t.note = "no 64-bit integer is put into 32 bits"


def _refuse(t: Trial) -> None:
    """Raise if there is no code to look at, or no tool to look at it with."""
    if t.place.kind.coverage is None:
        return
    if platform.machine() != "x86_64":
        raise NotRun(f"coverage reads x86-64 machine code, but this CPU is {platform.machine()}")
    try:
        reason = stored.missing(t.op, t.place.name)
    except ToolchainError as error:
        raise NotRun(str(error)) from None
    if reason.startswith("it has no"):
        raise NotApplicable(reason)
    if reason:
        raise NotRun(reason)
