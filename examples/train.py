# SPDX-License-Identifier: Apache-2.0
"""A small network made of opforge ops learns to classify points on two spirals.

    python examples/train.py [--compile] [--steps N]

It trains on a GPU if there is one. Then it trains the same network in eager PyTorch to compare.
"""

from __future__ import annotations

import argparse
import math
import time

import torch
from torch import nn

import opforge


class Block(nn.Module):
    """A residual layer: x + relu(scale * (x W) + bias)."""

    def __init__(self, width: int, fused: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=not fused)
        self.activation = opforge.nn.ScaleBiasReLU(width, scale=0.5) if fused else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.activation is None:
            return x + torch.relu(0.5 * self.linear(x))
        return opforge.vector_add(x, self.activation(self.linear(x)))


def spirals(count: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Points on two interleaved spirals, and the spiral of each point."""
    generator = torch.Generator().manual_seed(0)
    angle = torch.rand(count, generator=generator).sqrt() * 3 * math.pi
    label = torch.arange(count) % 2
    radius = (angle / (3 * math.pi)) * (1 - 2 * label)
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    points += 0.02 * torch.randn(count, 2, generator=generator)
    return points.to(device), label.to(device)


def train(fused: bool, steps: int, device: str, compiled: bool) -> tuple[float, float]:
    """Returns the final accuracy and the seconds that training took."""
    torch.manual_seed(0)
    layers = [nn.Linear(2, 128), *[Block(128, fused) for _ in range(4)], nn.Linear(128, 2)]
    model = nn.Sequential(*layers).to(device)
    forward = torch.compile(model, fullgraph=True) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    points, labels = spirals(4096, device)
    forward(points)  # the time does not include compiling and building kernels
    started = time.perf_counter()
    for step in range(steps):
        loss = nn.functional.cross_entropy(forward(points), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % max(1, steps // 5) == 0:
            print(f"  step {step:4}  loss {loss.item():.4f}")
    seconds = time.perf_counter() - started
    accuracy = (model(points).argmax(1) == labels).float().mean().item()
    return accuracy, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--compile", action="store_true", help="train under torch.compile")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name, fused in (("opforge", True), ("eager PyTorch", False)):
        print(f"{name} on {device}")
        accuracy, seconds = train(fused, args.steps, device, args.compile)
        print(f"  accuracy {accuracy:.3f} after {args.steps} steps in {seconds:.1f} s")


if __name__ == "__main__":
    main()
