# SPDX-License-Identifier: Apache-2.0
"""The page of benchmarks, and the part of the README that quotes it."""

from __future__ import annotations

import math

from opforge.bench.results import OURS, Results
from opforge.report.markup import number
from opforge.report.series import believed, grouped, share

from . import gallery, measured
from .data import LARGE, Data, apart, implementations, left_out, provenance, timed, title
from .text import GENERATED, enumerated, listed, prose, span, table

_METHOD = (
    "The implementations of an op take turns in one run, on inputs that change before every turn "
    "and are not in the caches; a time is the median over turns. Before and after, results are "
    "compared with float64: ours must be as exact as `opforge check` demands, others roughly "
    "right, or they are not timed. The ceiling is timed in the same run: a copy of the same bytes; "
    "for ops that only read, the faster of copying and reading; for matrix work the library's "
    "product. [bench.md](bench.md) has the details."
)


def page(data: Data, pictures: list[gallery.Picture]) -> str:
    """Everything that is about several ops; tables of shapes are on the pages of ops."""
    ours = data.of(data.ops)
    parts = [
        f"# Benchmarks\n\n{GENERATED}",
        prose(f"Measured on {provenance(data.results)}. The results: `benchmarks/results`."),
        prose(_METHOD, apart(ours)),
        "## Summary\n\n",
        prose(about_summary(data, ours)),
        summary(data, ours),
        "\nEvery shape, with accuracy and host time:\n\n",
        listed(f"[{name}](ops/{name}.md)" for name in data.ops),
        "\n## Known losses\n\n",
        prose(
            "Workloads where the fastest other is faster by more than 2%. The ratio is its time",
            "over ours.",
        ),
        measured.loss_summary(data),
        "\n## Pictures\n",
    ]
    for picture in pictures:
        parts.append(f"\n### {picture.title}\n\n{prose(picture.about)}")
        parts.append(f"![{picture.alt}](gallery/{picture.name}.svg)\n")
    return "".join(parts) + _yardsticks(data)


def about_summary(data: Data, results: Results) -> str:
    """What the summary is over."""
    rows = [r for r in timed(results) if data.is_large(r)]
    dtypes = list(dict.fromkeys(r.dtype for r in rows))
    shapes = {r.shape for r in rows}
    return (
        "Lowest and highest share of the ceiling over all workloads with a tensor of "
        f"{LARGE / 1e6:.0f} MB or more ({len(shapes)} shapes; {enumerated(dtypes)}). "
        + left_out(rows)
    ).strip()


def summary(data: Data, results: Results, brief: bool = False) -> str:
    """Lowest and highest share of the ceiling, a line for each op, pass and variant.

    In ``brief``, of the first variant alone, which is the plain one.
    """
    rows = [r for r in timed(results) if data.is_large(r) and share(r) is not None]
    if brief:
        plain = {r.op: r.variant for r in reversed(rows)}
        rows = [r for r in rows if r.variant == plain[r.op]]
    names = implementations(rows)
    lines = []
    for name, same in grouped(rows, title).items():
        cells = []
        for who in names:
            shares = [s for r in same if r.implementation == who and (s := share(r)) is not None]
            cells.append(span(shares) if shares else "–")
        lines.append([name, *cells])
    return table(["op", *names], lines)


def readme_part(data: Data) -> str:
    """What the README quotes: the summary, where it comes from, losses, the cost of a call."""
    ours = data.of(data.ops)
    top = prose(about_summary(data, ours), f"{provenance(ours)}.")
    end = prose(
        "Variants and every shape: [docs/benchmarks.md](docs/benchmarks.md).",
        measured.loss_count(data),
        apart(ours),
        _host(ours),
    )
    return f"{top}{summary(data, ours, brief=True)}\n{end}"


def _host(results: Results) -> str:
    """What a forward without gradients costs the CPU, over the built-in ops."""
    rows = [r for r in results.rows if r.host_us is not None and r.direction == "forward"]
    if not rows:
        return ""
    smallest = min({r.shape for r in rows}, key=math.prod)
    rows = [r for r in rows if r.shape == smallest]
    parts = []
    for name in implementations(rows):
        times = [r.host_us for r in rows if r.implementation == name and r.host_us]
        parts.append(f"{name} {min(times):.1f} – {max(times):.1f} µs")
    return f"Host time of a forward call ({rows[0].size}): {', '.join(parts)}."


def _yardsticks(data: Data) -> str:
    """Ops that opforge has no kernel for: what others reach."""
    results = data.of(data.yardsticks)
    if not results.rows:
        return ""
    parts = [
        "\n## Yardsticks\n\n",
        prose(
            "Ops of `benchmarks/ops`, for which opforge has no kernel yet, and what others reach.",
            about_summary(data, results),
        ),
        summary(data, results),
    ]
    for what, members in grouped(results.rows, title).items():
        for dtype, rows in grouped(members, lambda r: r.dtype).items():
            names = [n for n in implementations(rows) if n != OURS]
            lines = []
            for same in grouped(rows, lambda r: r.shape).values():
                by_name = {r.implementation: r for r in same if believed(r)}
                line = [same[0].size]
                for name in names:
                    row = by_name.get(name)
                    percent = None if row is None else share(row)
                    shown = "" if percent is None else f" ({100 * percent:.0f}%)"
                    line.append("–" if row is None else f"{number(row.us)}{shown}")
                lines.append(line)
            parts.append(f"\n{what}, {dtype}, µs and share of the ceiling:\n\n")
            parts.append(table(["shape", *names], lines))
    return "".join(parts) + measured.not_timed(results)
