# SPDX-License-Identifier: Apache-2.0
"""Measures how long torch.compile takes for a deep model of opforge's ops and in plain PyTorch.

    python benchmarks/compile_depth.py --layers 4 8 16
    python benchmarks/compile_depth.py --layers 16 --json depth.json

A layer is rms_norm with a residual, a projection, rope, another rms_norm with a residual and a
swiglu MLP; linear_cross_entropy ends the model. The time is that of the first forward and backward,
with Inductor's caches off. A small model is compiled first, so that no time includes what only a
first compilation costs, mainly imports.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch._inductor.config
from torch import Tensor, nn
from torch.nn import functional

import opforge

HEADS, DIM, TOKENS, VOCABULARY = 4, 16, 32, 128
WIDTH = HEADS * DIM


def plain_norm(x: Tensor, weight: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """The norm of x + residual, and that sum."""
    total = x + residual
    return functional.rms_norm(total, (WIDTH,), weight, 1e-6), total


def plain_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys, rotated by the angles of their positions."""

    def rotate(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        c, s = cos.unsqueeze(-2), sin.unsqueeze(-2)
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    return rotate(q), rotate(k)


class Layer(nn.Module):
    """A layer of a transformer; the product of queries and keys stands in for the attention."""

    def __init__(self, ours: bool) -> None:
        super().__init__()
        self.ours = ours
        self.norms = nn.ParameterList([nn.Parameter(torch.ones(WIDTH)) for _ in range(2)])
        self.qk = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, residual: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        norm, rope = (opforge.rms_norm, opforge.rope) if self.ours else (plain_norm, plain_rope)
        x, residual = norm(x, self.norms[0], residual)
        q, k = (part.unflatten(-1, (HEADS, DIM)) for part in self.qk(x).chunk(2, -1))
        q, k = rope(q, k, cos, sin)
        x, residual = norm((q * k).flatten(-2), self.norms[1], residual)
        gate, up = self.up(x).chunk(2, -1)
        gated = opforge.swiglu(gate, up) if self.ours else functional.silu(gate) * up
        return self.down(gated), residual


class Model(nn.Module):
    """Several layers and the loss."""

    def __init__(self, layers: int, ours: bool) -> None:
        super().__init__()
        self.ours = ours
        self.layers = nn.ModuleList(Layer(ours) for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: Tensor, labels: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        residual = torch.zeros_like(x)
        for layer in self.layers:
            x, residual = layer(x, residual, cos, sin)
        if self.ours:
            return opforge.linear_cross_entropy(x, self.head.weight, labels)
        return functional.cross_entropy(self.head(x), labels)


def compile_seconds(layers: int, ours: bool, device: str) -> float:
    """Seconds from the first call to the end of its backward; the model itself takes little."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Model(layers, ours).to(device)
    angles = torch.randn(TOKENS, DIM // 2, device=device)
    x = torch.randn(TOKENS, WIDTH, device=device)
    labels = torch.randint(VOCABULARY, (TOKENS,), device=device)
    run: Callable[..., Tensor] = torch.compile(model, fullgraph=True)
    started = time.perf_counter()
    run(x, labels, angles.cos(), angles.sin()).backward()
    return time.perf_counter() - started


def main() -> None:
    """Print both times and their ratio for each depth."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 8, 16], metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the times there")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch._inductor.config.force_disable_caches = True
    for ours in (True, False):
        compile_seconds(1, ours, device)
    rows = []
    print(f"torch {torch.__version__} on {device}, seconds to compile forward and backward")
    print("layers  opforge    plain  ratio")
    for layers in options.layers:
        ours, plain = (compile_seconds(layers, kind, device) for kind in (True, False))
        rows.append({"layers": layers, "opforge_s": ours, "plain_s": plain, "ratio": ours / plain})
        print(f"{layers:6}  {ours:7.1f}  {plain:7.1f}  {ours / plain:5.2f}", flush=True)
    if options.json:
        report = {"torch": torch.__version__, "device": device, "rows": rows}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
