# SPDX-License-Identifier: Apache-2.0
"""What the built-in ops' kernels gave on a real GPU, bit for bit; `python golden.py` records it.

Inputs of the records' small cases are stored. Those of the larger ones follow from integers by a
formula, and of their results, where they are long, only a digest is kept.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch

from opforge import discover
from opforge.op import Make, Op, as_tuple
from opforge.truth.cases import Case, differentiable

FOLDER = Path(__file__).parent
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SMALL = 3000  # elements a stored case may have
WHOLE = 4096  # elements of a result that is stored whole

SEED = torch.tensor([2**40 + 3])

# The ops whose every rounding the source fixes: elsewhere exp, erf and rsqrt are the GPU's own.
# Enough rows, columns and length that kernels split the work as they do for real sizes.
LARGE = {
    "relu": [((300, 1025),)],
    "vector_add": [((300, 1025), (1025,)), ((64, 3, 130), (3, 1))],
    "scale_bias_relu": [((2000, 257), (257,), 0.75), ((777, 1024), (1024,), -1.5)],
    "reduce_sum": [
        ((200_000,), None, False),
        ((3, 70_001), [1], False),
        ((2000, 257), [0], False),
        ((4, 300, 96), [1], True),
        ((512, 1024), [1], False),
        ((60, 40, 24), [0, 2], False),
    ],
    "cumsum": [((300, 1025), 1, False, False), ((3, 70_001), 1, True, True)],
    "reglu": [((300, 1025), (300, 1025))],
    "stencil2d": [((200, 301), (9,), 0, 0.0)],
    "dropout": [((300, 1025), SEED, 0.3)],
    "bias_dropout_residual": [((777, 1024), (1024,), (777, 1024), SEED, 0.1)],
    "rope": [((2, 70, 6, 128), (2, 70, 2, 128), (70, 64), (70, 64), None, False)],
}


def scrambled(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Values between -2 and 2, from integers alone: the same on every machine.

    They have more bits than a sum keeps, so that the order of additions shows.
    """
    count = torch.Size(shape).numel()
    index = torch.arange(count) + 1 + 1_000_003 * seed
    values = (index * 2_654_435_761) % (1 << 31)
    return (values.double() / (1 << 29) - 2).reshape(shape).to(dtype)


def cases(op: Op, dtype: torch.dtype) -> list[tuple[str, Case]]:
    """The cases on the CPU, each with a name."""
    found = []
    for number, case in enumerate(op.iter_cases(Make(dtype))):
        if 0 < sum(t.numel() for t in differentiable(case)) <= SMALL:
            found.append((f"case {number}", case))
    for number, spec in enumerate(LARGE.get(op.name, [])):
        arguments = tuple(
            scrambled(value, dtype, seed) if isinstance(value, tuple) else value
            for seed, value in enumerate(spec)
        )
        found.append((f"large {number}", arguments))
    return found


def moved(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A leaf on the device with the same strides and offset: ``to`` would close gaps."""
    whole = tensor.detach().as_strided(
        (tensor.untyped_storage().size() // tensor.itemsize,), (1,), 0
    )
    there = whole.to(device, copy=True)
    view = there.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return view.detach().requires_grad_(tensor.is_floating_point())


def run(op: Op, case: Case, device: str) -> dict[str, list[torch.Tensor]]:
    """Outputs and gradients, on the CPU; the gradients that come in are `scrambled`."""
    leaves = tuple(moved(a, device) if isinstance(a, torch.Tensor) else a for a in case)
    outputs = as_tuple(op(*leaves))
    grads = [scrambled(tuple(o.shape), o.dtype, 7).to(device) for o in outputs]
    torch.autograd.backward(outputs, grads)
    return {
        "outputs": [o.detach().cpu() for o in outputs],
        "gradients": [t.grad.cpu() for t in differentiable(leaves) if t.grad is not None],
    }


def bits(tensor: torch.Tensor) -> Any:
    """A result as it is kept: itself, or a digest of its bytes."""
    if tensor.numel() <= WHOLE:
        return tensor.contiguous()
    raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(raw).hexdigest()


def record(name: str, folder: Path) -> Path:
    """Run one op on the GPU and write what it gave."""
    op = discover.find(name)
    entries = []
    for dtype in DTYPES:
        for label, case in cases(op, dtype):
            results = {k: [bits(t) for t in v] for k, v in run(op, case, "cuda").items()}
            stored = case if label.startswith("case") else None
            entries.append({"dtype": dtype, "label": label, "arguments": stored, **results})
    facts = {
        "gpu": torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
    }
    path = folder / f"{name}.pt"
    torch.save({"facts": facts, "entries": entries}, path)
    return path


# Grid, block and bytes of dynamic shared memory, on both sides of each limit.
LAUNCHES = [
    ([1, 1, 1], [1024, 1, 1], 0),
    ([1, 1, 1], [1025, 1, 1], 0),
    ([1, 1, 1], [32, 33, 1], 0),
    ([1, 1, 1], [1, 1, 64], 0),
    ([1, 1, 1], [1, 1, 65], 0),
    ([1, 1, 1], [0, 1, 1], 0),
    ([0, 1, 1], [1, 1, 1], 0),
    ([1, 0, 1], [1, 1, 1], 0),
    ([1, 65535, 1], [1, 1, 1], 0),
    ([1, 65536, 1], [1, 1, 1], 0),
    ([1, 1, 65536], [1, 1, 1], 0),
    ([2**31, 1, 1], [1, 1, 1], 0),
    ([1, 1, 1], [32, 1, 1], 49152),
    ([1, 1, 1], [32, 1, 1], 300_000),
]


def launch_errors(device: str) -> list[str]:
    """CUDA's name for what is wrong with each of ``LAUNCHES``; "" where it works."""
    function, found = discover.load(FOLDER / "launch_limits"), []
    for grid, block, shared in LAUNCHES:
        try:
            function(torch.zeros(1, device=device), grid, block, shared)
            found.append("")
        except RuntimeError as error:
            found.append((re.findall(r"cudaError\w+", str(error)) or [str(error)])[0])
    return found


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    (target / "launch_errors.json").write_text(json.dumps(launch_errors("cuda"), indent=1) + "\n")
    for name in LARGE:
        print(record(name, target))
