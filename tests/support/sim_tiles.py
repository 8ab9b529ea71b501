# SPDX-License-Identifier: Apache-2.0
"""An op of kernels that copy and multiply tiles, for the tests of the simulator."""

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
from opforge.errors import SimulationError

_OP_PY = """
import torch
from opforge import Build, Op

op = Op(
    schema="NAME(Tensor a, Tensor b, int which, int threads, int cluster) -> Tensor y",
    reference=lambda a, b, which, threads, cluster: a @ b.mT,
    dtypes=(torch.float32, torch.float16, torch.bfloat16),
    build=Build(archs=["9.0a"]),
)
"""
_INCLUDES = """\
#include <opforge/core/cluster.h>
#include <opforge/core/shared.h>
#include <opforge/core/tensor_map.h>
#include <opforge/core/warpgroup.h>
#include <opforge/core/wgmma.h>
#include <opforge/host.h>

using namespace opforge;
"""
# What the kernels of all tests use, and the one that makes a product.
_SHARED = r"""
constexpr int kBox = 64 * kTileWidth, kShared = 14 * kBox;

struct Maps {
  TensorMap a, b, y;  // y has room beyond the result
};

__device__ unsigned char* boxes() {
  unsigned char* const start = dynamic_shared();
  return start + (kTileAlignment - reinterpret_cast<uintptr_t>(start) % kTileAlignment);
}

struct Barriers {
  Barrier full[4], empty[4];
};

__device__ Barriers& make_barriers(int readers = 1) {
  Barriers& s = shared<Barriers>();
  if (threadIdx.x == 0) {
    for (int i = 0; i < 4; ++i) init(s.full[i], 1), init(s.empty[i], readers);
    publish_barriers();
  }
  cluster_sync();
  return s;
}

// Values of 64 rows to boxes beside each other.
template <class T, int N>
__device__ void put(const float (&sums)[N], unsigned char* to) {
  const int t = int(threadIdx.x) % kWarpGroup;
  for (int i = 0; i < N; ++i) {
    const int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
    const int byte = (i / 4 * 8 + t % 4 * 2 + i % 2) * int(sizeof(T));
    *reinterpret_cast<T*>(to + byte / kTileWidth * kBox + swizzled(row, byte % kTileWidth)) =
        narrow<T>(sums[i]);
  }
}

struct Word {
  int value;
};

// Asks for a box of a.
__device__ void fetch(const Maps& maps, Barrier& full, unsigned char* to) {
  arrive_expecting(full, kBox);
  tile_copy(to, maps.a, 0, 0, 0, full);
}

// 64 x 128 of y by a warp group. With a box at -1 the first row and column are beyond the matrix.
template <class T, Major major_a, Major major_b>
__global__ void __launch_bounds__(128) one_tile(const __grid_constant__ Maps maps, int k) {
  constexpr int kInner = kTileWidth / int(sizeof(T)), kN = 128;
  Barriers& s = make_barriers();
  unsigned char *const a = boxes(), *const b = a + kBox, *const y = b + 2 * kBox;
  const int row = int(blockIdx.y) * 64, col = int(blockIdx.x) * kN, batch = int(blockIdx.z);
  float sums[kN / 2] = {};
  for (int stage = 0; stage * kInner < k; ++stage) {
    const int inner = stage * kInner;
    if (threadIdx.x == 0) {
      arrive_expecting(s.full[0], 3 * kBox);
      major_a == Major::inner ? tile_copy(a, maps.a, inner, row, batch, s.full[0])
                              : tile_copy(a, maps.a, row, inner, batch, s.full[0]);
      for (int i = 0; i < 2; ++i) {
        const int at = col + i * 64;
        major_b == Major::inner ? tile_copy(b + i * kBox, maps.b, inner, at, batch, s.full[0])
                                : tile_copy(b + i * kBox, maps.b, at, inner, batch, s.full[0]);
      }
    }
    wait(s.full[0], stage % 2);
    warpgroup_arrive();
    for (int step = 0; step < 4; ++step) {
      warpgroup_multiply<T, kN, major_a, major_b>(sums, tile_operand<major_a>(a, step, kBox),
                                                  tile_operand<major_b>(b, step, kBox),
                                                  stage + step > 0);
    }
    warpgroup_commit();
    warpgroup_wait<0>();
    keep_in_place(sums);
    __syncthreads();
  }
  put<T>(sums, y);
  fence_for_copies();
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int byte = 0; byte < kN * int(sizeof(T)); byte += kTileWidth)
    tile_store(maps.y, col + byte / int(sizeof(T)), row, batch, y + byte / kTileWidth * kBox);
  bulk_commit();
  bulk_wait_read<0>();
}
"""
_HOST = r"""
template <class T>
static TensorMap map_of(const Tensor& x, bool& inner) {
  inner = x.stride(2) == 1;
  const int row = inner ? 1 : 2, col = inner ? 2 : 1;
  const MatrixExtent extent{x.size(row), x.size(col), x.stride(row), x.size(0), x.stride(0)};
  return tensor_map(data<T>(x), extent, inner ? 64 : kTileWidth / int(sizeof(T)),
                    std::is_same_v<T, float>);
}

static Tensor run(const Tensor& a, const Tensor& b, int64_t which, int64_t threads,
                  int64_t cluster) {
  const int64_t m = a.size(1), n = b.size(1), k = a.size(2), batches = a.size(0);
  const int64_t sizes[] = {batches, m + 8, n + 8};
  const Tensor y = empty(sizes, a);
  const DeviceGuard guard(a.get_device_index());
  fill_zero(y);
  const auto go = [&](auto kernel, const Maps& maps, dim3 grid) {
    Config config{grid, dim3(unsigned(threads)), current_stream(a), kShared};
    config.cluster = int(cluster);
    launch(kernel, config, maps, int(k));
  };
  dispatch_all(dtype_of(a), [&]<class T>(Type<T>) {
    if constexpr (!std::is_same_v<T, double>) {
      bool a_inner, b_inner;
      Maps maps{map_of<T>(a, a_inner), map_of<T>(b, b_inner), {}};
      const MatrixExtent extent{m, n, n + 8, batches, (m + 8) * (n + 8)};
      maps.y = tensor_map(mutable_data<T>(y), extent, 64);
      if (which > 0) return go(kernels[which - 1], maps, dim3(unsigned(cluster)));
      const dim3 grid(unsigned(n + 127) / 128, unsigned(m + 63) / 64, unsigned(batches));
      constexpr Major in = Major::inner, out = Major::outer;
      if (a_inner && b_inner) return go(one_tile<T, in, in>, maps, grid);
      if constexpr (sizeof(T) == 2) {
        if (a_inner) return go(one_tile<T, in, out>, maps, grid);
        if (b_inner) return go(one_tile<T, out, in>, maps, grid);
        return go(one_tile<T, out, out>, maps, grid);
      }
    }
  });
  return y;
}
OPFORGE_IMPL(NAME, run)
"""
Run = Callable[..., torch.Tensor]


def kernels_of(source: str) -> list[str]:
    """Their names, in order."""
    return re.findall(r"^__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(", source, re.M)


def write_tiles(folder: Path, source: str) -> Path:
    """The folder of an op with these kernels beside the one that makes a product."""
    table = f"\nconstexpr void (*kernels[])(Maps, int) = {{{', '.join(kernels_of(source))}}};\n"
    cu = _INCLUDES + _SHARED + source + table + _HOST.replace("NAME", folder.name)
    return write_op(folder, op_py=_OP_PY.replace("NAME", folder.name), cpp=None, cu=cu)


def load_tiles(folder: Path, source: str, machine: str) -> Run:
    """Runs a kernel by its name, or without one the product."""
    function = opforge.load(folder)

    def call(
        a: Any, b: Any, kernel: str = "", threads: int = 128, cluster: int = 1, **how: Any
    ) -> Any:
        args = kernels_of(source).index(kernel) + 1 if kernel else 0, threads, cluster
        if machine == "cuda":
            return function(a.cuda(), b.cuda(), *args).cpu()
        return sim.run(function, a, b, *args, **how)

    return call


def matrix(dtype: torch.dtype, *shape: int, outer: bool = False) -> torch.Tensor:
    """Random numbers amid NaN."""
    batches, rows, cols = (shape[0], shape[2], shape[1]) if outer else shape
    around = torch.full((batches, rows + 8, cols + 8), torch.nan, dtype=dtype)
    x = around[:, :rows, :cols]
    x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(rows)))
    return x.mT if outer else x


def to_tf32(x: torch.Tensor) -> torch.Tensor:
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(torch.float32)  # ties to even


def check_product(y: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    exact = to_tf32 if a.dtype == torch.float32 else torch.Tensor.double
    truth = exact(a).double() @ exact(b).double().mT
    room = torch.zeros_like(y)
    room[:, : truth.shape[1], : truth.shape[2]] = truth.to(a.dtype)
    torch.testing.assert_close(y, room, rtol=2 * torch.finfo(a.dtype).eps, atol=1e-4)


def check_is_named(run: Run, kernel: str, said: str, races: bool, *shape: int) -> None:
    """A wrong kernel fails with this message and leaves nothing behind. ``races``: only the mode
    "race" finds it. ``shape``: threads of a block and blocks of a cluster, if not 128 and 1.
    """
    threads, cluster = [*shape, *(128, 1)[len(shape) :]]
    x = matrix(torch.bfloat16, 1, 64, 64)
    for mode in ["race"] if races else ["race", "plain"]:
        with pytest.raises(SimulationError, match=f"(?s){said}"):
            run(x, x, kernel, threads, cluster, mode=mode)
    check_product(run(x, x, mode="race"), x, x)
