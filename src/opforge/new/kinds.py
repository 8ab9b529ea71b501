# SPDX-License-Identifier: Apache-2.0
"""The kinds of ops that ``opforge new`` writes: what each is for, and which arguments it takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One kind of op. Its templates are in the folder of its name."""

    name: str
    about: str  # for the list of kinds
    arguments: str  # of its schema, if none is given
    tensors: int = 0  # how many tensors it takes; 0: any number
    optional: bool = False  # whether some may be "Tensor?"
    kernels: bool = True  # whether it has C++ of its own, and with it a backward

    @property
    def limits(self) -> str:
        """What its schema may hold, in words."""
        many = {0: "any number of Tensor", 1: "one Tensor", 2: "two Tensor"}[self.tensors]
        optional = ", Tensor?" if self.optional else ""
        return f"{many}{optional}, float, int and bool arguments, and returns one Tensor"

    def schema(self, name: str) -> str:
        """The schema of an op of this kind, if none is given."""
        return f"{name}({self.arguments}) -> Tensor {'c' if self.tensors == 2 else 'y'}"


_X_AND_SCALE = "Tensor x, float scale"

KINDS = {
    kind.name: kind
    for kind in (
        Kind("elementwise", "an element of each input makes one of the output", _X_AND_SCALE),
        Kind("row", "rows become new rows, by sums over each, as in a norm", _X_AND_SCALE),
        Kind("reduction", "a number per row of the last dim", _X_AND_SCALE),
        Kind(
            "stencil", "an element and its four neighbours on a 2D grid", "Tensor x, float rate", 1
        ),
        Kind("matmul", "a plain matrix product", "Tensor a, Tensor b", 2),
        Kind("composed", "Python made of other ops", _X_AND_SCALE, optional=True, kernels=False),
        Kind("blank", "a formula without kernels", _X_AND_SCALE, optional=True, kernels=False),
    )
}
