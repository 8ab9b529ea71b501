# SPDX-License-Identifier: Apache-2.0
"""Folders that `opforge new` writes, for its tests: every kind, by default and with more arguments.

Their names and contents are always the same, so that their kernels are compiled once.
"""

from __future__ import annotations

from pathlib import Path

from opforge.new import folder, kinds, request

KINDS = list(kinds.KINDS)
# A schema with several tensors, numbers and names of its own for each kind.
WIDE = {
    "elementwise": "{name}(Tensor x, Tensor weight, Tensor bias, float scale, int power, bool flip)"
    " -> Tensor out",
    "row": "{name}(Tensor hidden, Tensor weight, float eps, bool gated) -> Tensor out",
    "reduction": "{name}(Tensor a, Tensor b, int power) -> Tensor total_energy",
    "stencil": "{name}(Tensor image, float rate, bool twice) -> Tensor y",
    "matmul": "{name}(Tensor left, Tensor b, float alpha) -> Tensor product_of_both",
    "composed": "{name}(Tensor x, Tensor mask, Tensor? bias, int heads, float temperature) -> "
    "Tensor y",
    "blank": "{name}(Tensor x, Tensor? w, bool flag) -> Tensor y",
}


def write(kind: str, into: Path, wide: bool = False) -> Path:
    """The folder of an op of this kind."""
    name = f"{'wide' if wide else 'plain'}_{kind}"
    schema = WIDE[kind].format(name=name) if wide else None
    folder.write(request.resolve(name, kind, schema), into)
    return into / name
