# SPDX-License-Identifier: Apache-2.0
"""One of two processes that train the network of examples/deepspeed_train.py in several ways.

    python zero_worker.py RANK FILE RUNS

RUNS are the arguments of ``zero_losses``, in JSON. The first process prints a line with the losses
of each, and of plain PyTorch.
"""

import json
import sys
from pathlib import Path

import deepspeed
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import deepspeed_train

STEPS = 6


def main(rank: int, file: str, runs: list[dict[str, object]]) -> None:
    deepspeed.ops.__compatible_ops__ = {}  # else it compiles its own all-reduce for half a minute
    deepspeed_train.join(rank, file)
    losses = [deepspeed_train.zero_losses(steps=STEPS, **run) for run in runs]
    if rank == 0:
        plain = deepspeed_train.plain_losses(STEPS, 2, "cpu")
        print("losses", json.dumps({"zero": losses, "plain": plain}))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


main(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
