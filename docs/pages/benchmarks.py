# SPDX-License-Identifier: Apache-2.0
"""The page of benchmarks, and the parts of the README about ops and speed."""

from __future__ import annotations

import math

from opforge.bench.results import OURS, Results
from opforge.report.markup import count, number
from opforge.report.series import believed, contests, grouped, share

from . import gallery, kernels, measured
from .data import (
    LARGE,
    LOSS,
    Data,
    apart,
    implementations,
    left_out,
    losses,
    provenance,
    timed,
    title,
)
from .text import GENERATED, enumerated, listed, prose, span, table

_METHOD = (
    "All implementations of an op take turns in one run. The inputs change before every turn and "
    "are not in the caches. A time is the median over all turns. Before and after the timing, "
    "results are compared with float64: opforge must be as exact as `opforge check` "
    "requires, and the others must be correct up to rounding, or they are not timed. The ceiling "
    "is measured in the same run: a copy of the same bytes; for ops that only read, the faster of "
    "a copy and a read; for matrix work, the library's product. [bench.md](bench.md) has the "
    "details."
)
_FAR = 0.6  # of the ceiling: lowest shares below this are listed


def page(data: Data, pictures: list[gallery.Picture]) -> str:
    """Everything about more than one op; tables of shapes are on the pages of ops."""
    ours = data.of(data.ops)
    parts = [
        f"# Benchmarks\n\n{GENERATED}",
        prose(f"Measured on {provenance(data.results)}. Raw results: `benchmarks/results`."),
        prose(_METHOD, apart(ours)),
        prose(_host(ours)),
        "## Summary\n\n",
        prose(about_summary(data, ours)),
        summary(data, ours),
        "\nEvery shape, with accuracy and host time:\n\n",
        listed(f"[{name}](ops/{name}.md)" for name in data.ops),
        "\n## Measured code\n\n",
        kernels.part(data),
        "\n## Known losses\n\n",
        prose(
            "Workloads where the fastest alternative is faster by more than 2%. The ratio is its",
            "time divided by opforge's.",
            measured.loss_count(data),
        ),
        measured.loss_summary(data),
        "\n## Far from the ceiling\n\n",
        _far(data, ours),
        "\n## Pictures\n",
    ]
    for picture in pictures:
        parts.append(f"\n### {picture.title}\n\n{prose(picture.about)}")
        parts.append(f"![{picture.alt}](gallery/{picture.name}.svg)\n")
    return "".join(parts) + _yardsticks(data)


def about_summary(data: Data, results: Results) -> str:
    """Which workloads the summary covers."""
    rows = [r for r in timed(results) if data.is_large(r)]
    dtypes = list(dict.fromkeys(r.dtype for r in rows))
    shapes = {r.shape for r in rows}
    return (
        "Lowest and highest share of the ceiling over all workloads with a tensor of at least "
        f"{LARGE / 1e6:.0f} MB ({count(len(shapes), 'shape')}; {enumerated(dtypes)}). "
        + left_out(rows)
    ).strip()


def summary(data: Data, results: Results) -> str:
    """Lowest and highest share of the ceiling, a line for each op, pass and variant."""
    rows = [r for r in timed(results) if data.is_large(r) and share(r) is not None]
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
    """What the README says about speed."""
    results = data.of(data.ops)
    compared = sum(c.ratio is not None for c in contests(results))
    lost = len(losses(results))
    gpu = ", ".join(sorted({str(run.get("gpu", "?")) for run in results.runs.values()}))
    return prose(
        f"{gpu}, {compared} workloads (op, pass, shape, dtype), against eager PyTorch, "
        "`torch.compile` and, where they have the op, Liger-Kernel and quack: opforge is the "
        f"fastest or within {LOSS - 1:.0%} of the fastest in {compared - lost}. An alternative is "
        f"faster by more than {LOSS - 1:.0%} in {lost}. "
        "[docs/benchmarks.md](docs/benchmarks.md) lists these losses with their reasons, each op's "
        "share of the memory ceiling, and the kernels that have changed since they were measured."
    )


def _far(data: Data, results: Results) -> str:
    """Passes that are slow for the hardware, even if the alternatives are slower."""
    rows = [r for r in timed(results) if data.is_large(r) and r.implementation == OURS]
    found = []
    for name, same in grouped(rows, title).items():
        shares = [s for r in same if (s := share(r)) is not None]
        if shares and min(shares) < _FAR:
            found.append(f"{name}: {span(shares)}")
    intro = f"Passes whose lowest share of the ceiling is below {_FAR:.0%} in the summary:\n\n"
    return intro + listed(found) if found else "None.\n"


def _host(results: Results) -> str:
    """CPU time of a forward without gradients, over the built-in ops."""
    rows = [r for r in results.rows if r.host_us is not None and r.direction == "forward"]
    if not rows:
        return ""
    smallest = min({r.shape for r in rows}, key=math.prod)
    rows = [r for r in rows if r.shape == smallest]
    parts = []
    for name in implementations(rows):
        times = [r.host_us for r in rows if r.implementation == name and r.host_us]
        parts.append(f"{name} {min(times):.1f} – {max(times):.1f} µs")
    return f"Host time of a forward call at {rows[0].size}: {', '.join(parts)}."


def _yardsticks(data: Data) -> str:
    """Ops that opforge has no kernel for, and what others reach."""
    results = data.of(data.yardsticks)
    if not results.rows:
        return ""
    parts = [
        "\n## Yardsticks\n\n",
        prose(
            "These are the ops of `benchmarks/ops`. opforge has no kernel for them yet, so the "
            "tables show the alternatives alone.",
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
