# SPDX-License-Identifier: Apache-2.0
"""Measures the errors of a linear layer's products as FP8, and writes the table of docs/fp8.md.

    python benchmarks/fp8_accuracy.py            # prints it
    python benchmarks/fp8_accuracy.py --write    # and puts it into docs/fp8.md

The casts are those of the reference, which kernels repeat bit by bit. NVIDIA does not document how
tensor cores add; here that is modelled: a call gets 32 products and the sum so far, aligns all to
the largest of them, and cuts off what is below 14 bits. Results stay float32. The errors are those
of a block of each result against float64: of each element as a share of its usual size, the root of
the sum of its squared products. Of these shares it is the root mean square.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from opforge.bench.machine import provenance
from opforge.ops.families import float8

PAGE = Path(__file__).parents[1] / "docs/fp8.md"
START, END = "<!-- made by benchmarks/fp8_accuracy.py -->\n", "<!-- end -->\n"
BITS, CALL, STAGE = 14, 32, 128  # of a sum, products of a call, products between float additions

Values = Callable[..., Tensor]


def normal(*shape: int) -> Tensor:
    """Independent values of one size."""
    return torch.randn(shape)


def heavy(*shape: int) -> Tensor:
    """Student's t with 3 degrees of freedom: a few values are many times as large as the rest."""
    return torch.distributions.StudentT(3.0).sample(shape)


def features(*shape: int) -> Tensor:
    """One feature in 256 is 50 times as large, in all rows, as activations of large models have."""
    values = torch.randn(shape)
    values[:, torch.randperm(shape[1])[: shape[1] // 256]] *= 50
    return values


def rows_apart(*shape: int) -> Tensor:
    """Some rows are many times as large as others, as gradients of tokens are."""
    return torch.randn(shape) * 10 ** torch.randn(shape[0], 1)


def tensor_core_sums(a: Tensor, b: Tensor, fast: bool) -> Tensor:
    """``a bᵀ`` of FP8 values, added as described above."""
    total = torch.zeros(len(a), len(b), dtype=torch.float64)
    part = torch.zeros_like(total)
    for first in range(0, a.shape[1], CALL):
        if not fast and first % STAGE == 0:
            total, part = (total + part).float().double(), torch.zeros_like(part)
        products = a[:, None, first : first + CALL] * b[None, :, first : first + CALL]
        terms = torch.cat([products, part.unsqueeze(-1)], -1)
        _, exponent = torch.frexp(terms.abs().amax(-1, keepdim=True))
        unit = torch.ldexp(torch.ones_like(part).unsqueeze(-1), exponent - BITS)
        part = ((terms / unit).trunc_() * unit).sum(-1)
    return (total + part).float().double()


def cast(x: Tensor, dtype: torch.dtype, scaling: str, rows: int) -> tuple[Tensor, Tensor]:
    """Some rows of a matrix as FP8 values, and their scales."""
    bits, scale = float8.quantise(x, dtype, scaling == "row")
    scale = scale[:rows] if scaling == "row" else scale.expand(rows)
    return float8.values(bits[:rows], dtype == float8.E5M2, torch.float64), scale.double()


def error(a: Tensor, b: Tensor, dtype: torch.dtype, scaling: str, fast: bool, block: int) -> float:
    """Of a block of ``a bᵀ``, with a as ``dtype`` and b as E4M3."""
    right = a[:block].double() @ b[:block].double().t()
    if scaling == "none":
        found = right.bfloat16().double()
    else:
        left, by_row = cast(a, dtype, scaling, block)
        other, by_col = cast(b, float8.E4M3, scaling, block)
        found = tensor_core_sums(left, other, fast) * by_row.unsqueeze(1) * by_col
    usual = (a[:block].double().square() @ b[:block].double().square().t()).sqrt()
    return float(((found - right) / usual).square().mean().sqrt())


def rows(size: int, block: int) -> Iterator[tuple[str, str, float, float, float]]:
    """A line of the table for each kind of values and each way to multiply."""
    kinds: dict[str, Values] = {
        "normal": normal,
        "heavy-tailed": heavy,
        "large features": features,
        "rows apart": rows_apart,
    }
    ways = {
        "none, rounded to bfloat16": ("none", False),
        "row": ("row", False),
        "row, `fast_accum`": ("row", True),
        "tensor": ("tensor", False),
        "tensor, `fast_accum`": ("tensor", True),
    }
    for kind, values in kinds.items():
        torch.manual_seed(0)
        x = values(size, size).bfloat16()
        weight = (torch.randn(size, size) * size**-0.5).bfloat16()
        grad = (normal if values is features else values)(size, size).bfloat16()
        for way, (scaling, fast) in ways.items():
            yield (
                kind,
                way,
                error(x, weight, float8.E4M3, scaling, fast, block),
                error(grad, weight.t(), float8.E5M2, scaling, False, block),
                error(grad.t(), x.t(), float8.E5M2, scaling, False, block),
            )


def main() -> None:
    """Make the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=4096, help="of all three dims")
    parser.add_argument("--block", type=int, default=96, help="rows and columns that are compared")
    parser.add_argument("--write", action="store_true", help="put it into docs/fp8.md")
    options = parser.parse_args()
    facts = provenance("cpu", "", None)
    text = "| Values | Scales | Forward | Gradient of x | Gradient of weight |\n"
    text += "|---|---|---|---|---|\n"
    for kind, way, *errors in rows(options.size, options.block):
        text += f"| {kind} | {way} | " + " | ".join(f"{e:.2%}" for e in errors) + " |\n"
    text += (
        f"\n{options.size} rows, features and outputs; blocks of {options.block} x "
        f"{options.block}; seed 0; {facts['date']}, commit {facts['commit']}, torch "
        f"{facts['torch']}, on a CPU.\n"
    )
    print(text)
    if options.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
        after = rest.partition(END)[2]
        PAGE.write_text(before + START + text + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
