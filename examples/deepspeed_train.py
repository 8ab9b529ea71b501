# SPDX-License-Identifier: Apache-2.0
"""A small transformer made of opforge ops, trained with DeepSpeed's ZeRO in two processes.

    python examples/deepspeed_train.py [--stage 0-3] [--steps N] [--checkpoint] [--compile BACKEND]

It runs on the CPU, over the loopback interface, or under DeepSpeed's launcher on GPUs:
`deepspeed --num_gpus 2 examples/deepspeed_train.py`. Then it trains the same network in plain
PyTorch, in one process on the whole batch, and prints both losses and how far they are apart.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opforge

WORDS, LENGTH, WIDTH, HEADS, LAYERS, BATCH = 64, 32, 64, 4, 2, 4
HEAD = WIDTH // HEADS


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding in plain PyTorch."""
    a, b = x.chunk(2, -1)  # of (…, tokens, heads, dim)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Block(nn.Module):
    """Attention and a gated layer, each after a norm; ``fused`` takes the ops of opforge."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        norm = opforge.nn.RMSNorm if fused else nn.RMSNorm
        self.norm1, self.norm2 = norm(WIDTH, eps=1e-6), norm(WIDTH, eps=1e-6)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, HEADS, HEAD).unbind(2)
        if self.fused:
            q, k = opforge.rope(q, k, cos, sin)
        else:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1)
        scale = 1 / math.sqrt(HEAD)
        if self.fused:
            shares = opforge.softmax(scores, scale=scale, causal=True)
        else:
            later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
            shares = (scores * scale).masked_fill(later, -math.inf).softmax(-1)
        x = x + self.out((shares @ v.transpose(1, 2)).transpose(1, 2).reshape(x.shape))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(opforge.swiglu(gate, up) if self.fused else F.silu(gate) * up)


class Transformer(nn.Module):
    """Predicts the next word; returns the loss."""

    def __init__(self, fused: bool, checkpoint: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)  # both networks begin alike
        self.fused, self.checkpoint = fused, checkpoint
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(fused) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        angle = torch.arange(LENGTH)[:, None] / 1e4 ** (torch.arange(HEAD // 2) * 2 / HEAD)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text[:, :-1])
        for block in self.blocks:
            if self.checkpoint:  # the block runs again in the backward, and keeps only its input
                import deepspeed

                x = deepspeed.checkpointing.checkpoint(block, x, self.cos, self.sin)
            else:
                x = block(x, self.cos, self.sin)
        logits, target = self.head(x).flatten(0, 1), text[:, 1:].flatten()
        return (opforge.cross_entropy if self.fused else F.cross_entropy)(logits, target)


def batch(step: int, ranks: int) -> Tensor:
    """Texts of all ranks, in which every word follows from the one before it."""
    generator = torch.Generator().manual_seed(step)
    words = [torch.randint(WORDS, (ranks * BATCH,), generator=generator)]
    while len(words) <= LENGTH:
        words.append((5 * words[-1] + 3) % WORDS)
    return torch.stack(words, 1)


def plain_losses(steps: int, ranks: int, device: str) -> list[float]:
    """The losses of the network in plain PyTorch, on the whole batch."""
    model, losses = Transformer(fused=False).to(device), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        loss = model(batch(step, ranks).to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def zero_losses(
    stage: int, steps: int, checkpoint: bool = False, compiler: str | None = None
) -> list[float]:
    """The losses of the network of opforge's ops under ZeRO, averaged over the ranks."""
    import deepspeed
    from deepspeed import comm

    rank, ranks = comm.get_rank(), comm.get_world_size()
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "zero_optimization": {"stage": stage},
        "gradient_clipping": 0,  # the default of DeepSpeed is 1.0
    }
    model = Transformer(fused=True, checkpoint=checkpoint)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)  # DeepSpeed's would be compiled
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    if compiler:
        engine.compile(backend=compiler)
    losses = []
    for step in range(steps):
        mine = batch(step, ranks)[rank * BATCH : (rank + 1) * BATCH].to(engine.device)
        loss = engine(mine)
        engine.backward(loss)
        engine.step()
        comm.all_reduce(total := loss.detach().clone())
        losses.append(total.item() / ranks)
    engine.destroy()
    return losses


def join(rank: int = 0, file: str = "") -> None:
    """Join the other processes: those of DeepSpeed's launcher, or those that main() started."""
    if file:  # no port but those of gloo, on the loopback interface
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "DS_ACCELERATOR": "cpu"}
        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo", f"file://{file}", rank=rank, world_size=2)
    import deepspeed

    deepspeed.init_distributed()


def work(rank: int, file: str, args: argparse.Namespace) -> None:
    join(rank, file)
    from deepspeed.accelerator import get_accelerator

    ranks, device = torch.distributed.get_world_size(), get_accelerator().current_device_name()
    zero = zero_losses(args.stage, args.steps, args.checkpoint, args.compile)
    if torch.distributed.get_rank() == 0:
        plain = plain_losses(args.steps, ranks, device)
        for step, (a, b) in enumerate(zip(zero, plain, strict=True)):
            print(f"step {step:3}  ZeRO {args.stage} {a:.6f}  plain PyTorch {b:.6f}")
        print(f"largest difference {max(abs(a - b) for a, b in zip(zero, plain, strict=True)):.1e}")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", type=int, default=3, choices=range(4), help="of ZeRO")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checkpoint", action="store_true", help="checkpoint activations")
    parser.add_argument("--compile", metavar="BACKEND", help="engine.compile(), as by inductor")
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # from the launcher
    args = parser.parse_args()
    if "RANK" in os.environ:
        work(0, "", args)
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (f"{folder}/store", args), nprocs=2)


if __name__ == "__main__":
    main()
