# SPDX-License-Identifier: Apache-2.0
"""Ops made of many small kernels, for the tests of the simulator."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import write_op

import opforge
from opforge import sim

# The kernels of a test run in the simulator and, where there is one, on a GPU: what is expected of
# the simulator is what CUDA does.
EACH_MACHINE = ["sim", pytest.param("cuda", marks=pytest.mark.cuda)]

_OP_PY = """
import torch
from opforge import Op

op = Op(
    schema="{name}(Tensor x, int which, int[] grid, int[] block, int shared, int cluster, int size)"
    " -> Tensor y",
    reference=lambda x, which, grid, block, shared, cluster, size: x.new_zeros(size),
    dtypes=(torch.int64,),
)
"""
_INCLUDES = """\
#include <opforge/core/async.h>
#include <opforge/core/cluster.h>
#include <opforge/host.h>
#include <opforge/core/shared.h>
#include <opforge/core/vec.h>

#include <cstring>

"""
_LAUNCH = """
static opforge::Tensor run(const opforge::Tensor& x, int64_t which,
                           const std::vector<int64_t>& grid, const std::vector<int64_t>& block,
                           int64_t shared, int64_t cluster, int64_t size) {{
  constexpr void (*kernels[])(const int64_t*, int64_t*) = {{{kernels}}};
  const int64_t sizes[] = {{size}};
  opforge::Tensor y = opforge::empty(sizes, x);
  opforge::fill_zero(y);
  opforge::Config config{{dim3(grid[0], grid[1], grid[2]), dim3(block[0], block[1], block[2]),
                         opforge::current_stream(x), size_t(shared)}};
  config.cluster = int(cluster);
  opforge::launch(kernels[which], config, opforge::data<int64_t>(x),
                  opforge::mutable_data<int64_t>(y));
  return y;
}}
OPFORGE_IMPL({name}, run)
"""
# A kernel that is right, to show that what was before has left nothing behind.
FINE = """
__device__ int number() { return blockIdx.x * blockDim.x + threadIdx.x; }

__global__ void fine(const int64_t* x, int64_t* y) {
  const int i = number();
  const int n = __syncthreads_count(1);
  y[i] = x[i] + n;
}
"""
_KERNEL = re.compile(r"__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(")
Call = Callable[..., list[int]]


def write_kernels(folder: Path, name: str, kernels: str) -> Path:
    """An op that runs any of the kernels, each void(const int64_t* x, int64_t* y)."""
    names = ", ".join(_KERNEL.findall(kernels))
    source = _INCLUDES + kernels + _LAUNCH.format(name=name, kernels=names)
    return write_op(folder / name, op_py=_OP_PY.format(name=name), cpp=None, cu=source)


def load_kernels(folder: Path, machine: str = "sim") -> Call:
    """Runs one of an op's kernels by name; y is zero before and comes back.

    Options are the simulator's; a GPU has no use for them.
    """
    function = opforge.load(folder)
    names = _KERNEL.findall((folder / "cuda.cu").read_text())

    def call(
        kernel: str,
        x: list[int] | None = None,
        grid: tuple[int, ...] = (1,),
        block: tuple[int, ...] = (32,),
        size: int = 1,
        shared: int = 0,
        cluster: int = 1,
        **options: object,
    ) -> list[int]:
        shapes = [[*shape, 1, 1][:3] for shape in (grid, block)]
        values = torch.tensor(x or [0])
        args = [names.index(kernel), *shapes, shared, cluster, size]
        if machine == "cuda":
            return function(values.cuda(), *args).tolist()
        return sim.run(function, values, *args, **options).tolist()

    call.machine = machine
    return call


def works(call: Call, **options: Any) -> None:
    """Run the kernel of ``FINE``."""
    x = list(range(128))
    assert call("fine", x, grid=(2,), block=(64,), size=128, **options) == [i + 64 for i in x]


def line_of(kernels: str, marker: str) -> int:
    """The line of cuda.cu where a marker stands in the kernels given to write_kernels."""
    text = _INCLUDES + kernels
    assert text.count(marker) == 1
    return text[: text.index(marker)].count("\n") + 1


def rows(flat: list[int], width: int) -> list[list[int]]:
    return [flat[i : i + width] for i in range(0, len(flat), width)]


# However it runs, the result is the same, and the detectors find nothing in code that is right.
WAYS = pytest.mark.parametrize(
    "way",
    [{}, {"seed": 0}, {"seed": 1}, {"mode": "race"}, {"mode": "race", "seed": 2}],
    ids=["plain", "seed-0", "seed-1", "race", "race-seed-2"],
)
