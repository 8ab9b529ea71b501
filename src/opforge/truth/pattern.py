# SPDX-License-Identifier: Apache-2.0
"""Describes in words where the wrong elements of a result are, which often shows the cause."""

from __future__ import annotations

import torch


def describe(wrong: torch.Tensor) -> str:
    """Describe the positions where ``wrong`` is true. It must be true somewhere."""
    count, total = int(wrong.sum()), wrong.numel()
    if count == total:
        return "everywhere" if total > 1 else "in its only element"
    if count == 1:
        return "nowhere else"
    if wrong.dim() >= 2:
        rows = wrong.reshape(-1, wrong.shape[-1])
        which_rows, which_columns = rows.any(1), rows.any(0)
        if bool(rows[which_rows].all()):
            return _run("row", which_rows)
        if bool(rows[:, which_columns].all()):
            return _run("column", which_columns) + " of every row"
        inside = rows[which_rows][:, which_columns]
        if bool(inside.all()):
            return f"{_run('row', which_rows)}, {_run('column', which_columns)}"
    return _run("element", wrong.flatten())


def _run(name: str, wrong: torch.Tensor) -> str:
    """Describe a set of indices: the first, the last, a range, every n-th, or their number."""
    found = wrong.nonzero().flatten()
    first, last, count, total = int(found[0]), int(found[-1]), len(found), len(wrong)
    if count == total:
        return f"every {name}"
    if count == 1:
        return f"only in {name} {first}"
    steps = found.diff()
    step = int(steps[0])
    if bool((steps == step).all()):
        if step == 1 and last == total - 1:
            return f"only in the last {count} {name}s (from {first} on)"
        if step == 1 and first == 0:
            return f"only in the first {count} {name}s"
        if step == 1:
            return f"only in {name}s {first} to {last}"
        if first < step and last + step >= total:
            return f"in every {step}. {name}, from {first} on"
    if name == "element":
        return f"scattered from element {first} to {last}"
    return f"in {count} of {total} {name}s, {first} to {last}"
