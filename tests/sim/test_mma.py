# SPDX-License-Identifier: Apache-2.0
"""Products of a warp and copies of 16 bytes: right kernels are right, wrong ones are named."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import write_op
from sim_kernels import EACH_MACHINE, WAYS
from torch import Tensor

import opforge
from opforge import sim
from opforge.errors import SimulationError

pytestmark = pytest.mark.sim

OP_PY = """
import torch
from opforge import Op

op = Op(
    schema="sim_mma(Tensor a, Tensor b, int which) -> Tensor y",
    reference=lambda a, b, which: a.new_zeros(a.shape[0], 8, dtype=torch.float32),
    dtypes=(torch.float32, torch.float16, torch.bfloat16),
)
"""
INCLUDES = """\
#include <opforge/core/mma.h>
#include <opforge/core/pieces.h>
#include <opforge/core/shared.h>
#include <opforge/host.h>

using namespace opforge;
"""
RIGHT = r"""
// One warp: 16 rows of a, and b as 8 rows (columns of the product). Any number of bytes that is
// a multiple of 16; stages have 32.
struct Stages {
  alignas(128) unsigned char a[2][16][32], b[2][8][32];
};

__device__ void fetch(Stages& s, int i, const unsigned char* a, const unsigned char* b, int bytes) {
  const int lane = int(threadIdx.x), row = lane / 2, at = lane % 2 * 16, from = i * 32 + at;
  const int there = from < bytes ? 16 : 0;
  piece_copy(&s.a[i % 2][row][at], a + (there ? row * bytes + from : 0), there);
  if (row < 8) piece_copy(&s.b[i % 2][row][at], b + (there ? row * bytes + from : 0), there);
}

template <class T>
__device__ void put(const float (&sums)[4], float* y) {
  const int g = int(threadIdx.x) / 4, t = int(threadIdx.x) % 4;
  for (int i = 0; i < 4; ++i) y[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sums[i];
}

template <class T>
__device__ void round(uint32_t& word) {
  if constexpr (sizeof(T) == 4) {
    float value;
    memcpy(&value, &word, 4);
    word = to_tf32(value);
  }
}

template <class T>
__global__ void product(const unsigned char* a, const unsigned char* b, float* y, int bytes) {
  Stages& s = shared<Stages>();
  const int lane = int(threadIdx.x), stages = (bytes + 31) / 32;
  float sums[4] = {};
  fetch(s, 0, a, b, bytes);
  piece_commit();
  for (int i = 0; i < stages; ++i) {
    if (i + 1 < stages) fetch(s, i + 1, a, b, bytes);
    piece_commit();
    piece_wait<1>();
    __syncwarp();
    uint32_t in_a[4], in_b[4];
    load_matrices(in_a, &s.a[i % 2][lane % 16][lane / 16 * 16]);
    load_matrices(in_b, &s.b[i % 2][lane % 8][lane / 8 % 2 * 16]);
    for (uint32_t& word : in_a) round<T>(word);
    for (uint32_t& word : in_b) round<T>(word);
    warp_multiply<T>(sums, in_a, {in_b[0], in_b[1]});
    __syncwarp();
  }
  put<T>(sums, y);
}

// b has a row per inner index: 16 of 8 values. A barrier of the block tells of the pieces.
template <class T>
__global__ void transposed(const unsigned char* a, const unsigned char* b, float* y, int) {
  Stages& s = shared<Stages>();
  const int lane = int(threadIdx.x);
  piece_copy(&s.a[0][lane / 2][lane % 2 * 16], a + lane * 16);
  if (lane < 16) piece_copy(&s.b[0][0][0] + lane * 16, b + lane * 16);
  piece_commit();
  piece_wait<0>();
  __syncthreads();
  float sums[4] = {};
  uint32_t in_a[4], in_b[4];
  load_matrices(in_a, &s.a[0][lane % 16][lane / 16 * 16]);
  load_matrices<true>(in_b, &s.b[0][0][0] + lane % 16 * 16);
  warp_multiply<T>(sums, in_a, {in_b[0], in_b[1]});
  put<T>(sums, y);
}

// Only 8 bytes of the piece.
template <class T>
__global__ void part(const unsigned char* a, const unsigned char*, float* y, int) {
  Stages& s = shared<Stages>();
  if (threadIdx.x == 0) piece_copy(s.a[0][0], a, 8);
  piece_wait<0>();  // of groups: this piece is in none yet
  piece_commit();
  piece_wait<0>();
  __syncwarp();
  y[threadIdx.x] = float(s.a[0][0][threadIdx.x % 16]);
}
"""
WRONG = r"""
template <class T>
__global__ void wrong_half(const unsigned char*, const unsigned char*, float* y, int) {
  float sums[4] = {};
  if (threadIdx.x < 16) warp_multiply<T>(sums, {0, 0, 0, 0}, {0, 0});
  __syncwarp();
  put<T>(sums, y);
}

template <class T>
__global__ void wrong_exited(const unsigned char*, const unsigned char*, float* y, int) {
  float sums[4] = {};
  if (threadIdx.x == 31) return;
  warp_multiply<T>(sums, {0, 0, 0, 0}, {0, 0});
  put<T>(sums, y);
}

template <class T>
__global__ void wrong_no_wait(const unsigned char* a, const unsigned char* b, float* y, int bytes) {
  Stages& s = shared<Stages>();
  fetch(s, 0, a, b, bytes);
  piece_commit();
  piece_wait<1>();
  __syncwarp();
  y[threadIdx.x] = float(s.a[0][0][threadIdx.x]);
}

template <class T>
__global__ void wrong_own_wait(const unsigned char* a, const unsigned char* b, float* y,
                               int bytes) {
  Stages& s = shared<Stages>();
  fetch(s, 0, a, b, bytes);
  piece_commit();
  piece_wait<0>();
  y[threadIdx.x] = float(s.a[0][0][threadIdx.x]);
}

template <class T>
__global__ void wrong_refill(const unsigned char* a, const unsigned char* b, float* y, int bytes) {
  Stages& s = shared<Stages>();
  for (int i = 0; i < 2; ++i) {
    fetch(s, 0, a, b, bytes);
    piece_commit();
    piece_wait<0>();
    __syncwarp();
    y[threadIdx.x] = float(s.a[0][0][threadIdx.x]);
  }
}

template <class T>
__global__ void wrong_source(const unsigned char* a, const unsigned char*, float*, int) {
  if (threadIdx.x == 0) piece_copy(shared<Stages>().a[0][0], a + 8);
}

template <class T>
__global__ void wrong_target(const unsigned char* a, const unsigned char*, float*, int) {
  if (threadIdx.x == 0) piece_copy(&shared<Stages>().a[0][0][4], a);
}

template <class T>
__global__ void wrong_direction(const unsigned char* a, const unsigned char*, float* y, int) {
  if (threadIdx.x == 0) piece_copy(y, a);
}
"""
HOST = r"""
static Tensor run(const Tensor& a, const Tensor& b, int64_t which) {
  const int64_t sizes[] = {a.size(0), 8};
  const Tensor y = empty(sizes, aoti_torch_dtype_float32(), a);
  const DeviceGuard guard(a.get_device_index());
  fill_zero(y);
  dispatch_all(dtype_of(a), [&]<class T>(Type<T>) {
    if constexpr (!std::is_same_v<T, double>) {
      constexpr void (*kernels[])(const unsigned char*, const unsigned char*, float*, int) = {
          NAMES};
      launch(kernels[which], {dim3(1), dim3(32), current_stream(a)},
             static_cast<const unsigned char*>(a.const_data_ptr()),
             static_cast<const unsigned char*>(b.const_data_ptr()), mutable_data<float>(y),
             int(a.size(1) * sizeof(T)));
    }
  });
  return y;
}
OPFORGE_IMPL(sim_mma, run)
"""
NAMED = {  # what is said, and whether --race is needed for it
    "wrong_half": ("deadlock: .*", False),
    "wrong_exited": ("shuffle: .*multiplies with its warp, of which some lanes have ex", False),
    "wrong_no_wait": (r"race: .* a piece_copy\(\) of thread .*without piece_wait\(\)", True),
    "wrong_own_wait": (r"race: .* a piece_copy\(\) of thread .*without piece_wait\(\)", True),
    "wrong_refill": (r"race: .*(a|asks for a) piece_copy\(\) ", True),
    "wrong_source": ("misaligned: .*address in global memory is 8 bytes past", False),
    "wrong_target": ("misaligned: .*address in shared memory is 4 bytes past", False),
    "wrong_direction": ("bad-address: .* not between global memory and the shared", False),
}
KERNELS = re.findall(r"__global__ void (\w+)\(", RIGHT + WRONG)
assert {name for name in KERNELS if name.startswith("wrong_")} == set(NAMED)
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
Call = Callable[..., Tensor]


@pytest.fixture(scope="module")
def op(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Tensor]:
    names = ", ".join(f"{name}<T>" for name in KERNELS)
    folder: Path = tmp_path_factory.mktemp("mma") / "sim_mma"
    source = INCLUDES + RIGHT + WRONG + HOST.replace("NAMES", names)
    return opforge.load(write_op(folder, op_py=OP_PY, cpp=None, cu=source))


@pytest.fixture(scope="module", params=EACH_MACHINE)
def call(request: pytest.FixtureRequest, op: Callable[..., Tensor]) -> Call:
    def run(kernel: str, a: Tensor, b: Tensor, **options: Any) -> Tensor:
        which = KERNELS.index(kernel)
        if request.param == "cuda":
            return op(a.cuda(), b.cuda(), which).cpu()
        return sim.run(op, a, b, which, **options)

    return run


def some(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(y: Tensor, a: Tensor, b: Tensor) -> None:
    """Within the rounding of float sums, and of what is multiplied to 11 bits."""
    bits = 11 if a.dtype == torch.float32 else 22
    bound = (a.double().abs() @ b.double().abs()) * 2.0 ** (1 - bits)
    assert ((y.double() - a.double() @ b.double()).abs() <= bound).all()


@WAYS
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_over_stages(call: Call, dtype: torch.dtype, way: dict[str, Any]) -> None:
    k = 5 * 16 // dtype.itemsize  # two stages and a half
    a, b = some(16, k, dtype=dtype), some(8, k, dtype=dtype, seed=1)
    close(call("product", a, b, **way), a, b.t())


@WAYS
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_an_operand_is_transposed(call: Call, dtype: torch.dtype, way: dict[str, Any]) -> None:
    a, b = some(16, 16, dtype=dtype), some(16, 8, dtype=dtype, seed=1)
    close(call("transposed", a, b, **way), a, b)


def test_tf32_rounds_to_the_nearest(call: Call) -> None:
    a, b = torch.zeros(16, 8), torch.zeros(8, 8)
    step = 2.0**-10
    a[:6, 0] = torch.tensor(
        [1 + 0.4 * step, 1 + 0.6 * step, -1 - 0.5 * step, 3e38, 1e-30, torch.inf]
    )
    b[0, 0] = 1
    y = call("product", a, b)[:6, 0]
    assert y[:3].tolist() == [1, 1 + step, -1 - step]
    assert y[3:5].tolist() == pytest.approx([3e38, 1e-30], rel=step / 2)
    assert y[5] == torch.inf


def test_the_rest_of_a_piece_is_zeros(call: Call) -> None:
    a = torch.full((16, 16), 1.0, dtype=torch.float16)
    y = call("part", a, a).flatten()[:32].tolist()
    assert y == ([0, 0x3C] * 4 + [0] * 8) * 2


@pytest.mark.parametrize("kernel", NAMED)
def test_wrong_kernels_are_named(op: Callable[..., Tensor], kernel: str) -> None:
    said, race = NAMED[kernel]
    a, b = some(16, 32, dtype=torch.bfloat16), some(8, 32, dtype=torch.bfloat16)
    with pytest.raises(SimulationError, match=re.compile(said, re.DOTALL)):
        sim.run(op, a, b, KERNELS.index(kernel), mode="race" if race else "plain")


def test_what_has_not_landed_is_not_a_number(op: Callable[..., Tensor]) -> None:
    a, b = some(16, 32, dtype=torch.bfloat16), some(8, 32, dtype=torch.bfloat16)
    y = sim.run(op, a, b, KERNELS.index("wrong_no_wait"))
    assert (y.flatten()[:32] == 255).all()
