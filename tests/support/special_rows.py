# SPDX-License-Identifier: Apache-2.0
"""The rows of the check that an op's record makes special to it."""

from __future__ import annotations

from opforge.op import Backward, Op


def special_rows(op: Op) -> list[str]:
    """Cases and gradients for every op, and rows that fields of the record ask for."""
    arguments = {a.name for a in op.forward.args}
    rows = {
        "own-cases": True,
        "gradients": True,
        "label-out-of-range": bool(op.own_dtypes),
        "eps": "eps" in arguments,
        "dropout": "p" in arguments,
        "randomness": "seed" in arguments,
        "missing-gradient": len(op.outputs) > 1,
        "strides": op.like is not None,
        "cancellation": op.rowwise,
        "vmap": op.pointwise,
        "thread-counts": op.same_bits,
        "statistics": bool(op.statistics),
        "backward-reference": isinstance(op.backward, Backward),
        "module-is-the-op": op.module is not None,
        "autocast": op.autocast is not None,
    }
    return [row for row, special in rows.items() if special]
