# SPDX-License-Identifier: Apache-2.0
"""The command `opforge new`, and folders that it writes: every kind, by default and with more
arguments. Their names and contents are always the same, so that their kernels are compiled once.
"""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from opforge import cli
from opforge.errors import NewError
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


def new(*words: object) -> str:
    """What the command prints; it must succeed."""
    result = CliRunner().invoke(cli.app, ["new", *map(str, words)], terminal_width=200)
    assert result.exit_code == 0, result.output
    return result.output


def refusal(*words: object) -> str:
    """The error of a command that must fail."""
    result = CliRunner().invoke(cli.app, ["new", *map(str, words)])
    assert isinstance(result.exception, NewError), result.exception
    return str(result.exception)


def write(kind: str, into: Path, wide: bool = False) -> Path:
    """The folder of an op of this kind."""
    name = f"{'wide' if wide else 'plain'}_{kind}"
    schema = WIDE[kind].format(name=name) if wide else None
    folder.write(request.resolve(name, kind, schema), into)
    return into / name
