# SPDX-License-Identifier: Apache-2.0
"""Tiles, products of warp groups and named barriers: right kernels are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sim_kernels import EACH_MACHINE
from sim_tiles import Run, check_product, load_tiles, matrix, to_tf32, write_tiles

import opforge
from opforge import sim
from opforge.errors import SimulationError

pytestmark = pytest.mark.sim

KERNELS = r"""
// A warp group fetches, two multiply. Both blocks of a cluster need the same 128 rows of a. Each
// fetches one half for both.
__global__ void __launch_bounds__(384) roles(const __grid_constant__ Maps maps, int k) {
  constexpr int kStages = 2, kInner = 64;
  const int stages = (k + kInner - 1) / kInner, tiles = 3, rank = cluster_rank();
  const int group = int(threadIdx.x) / kWarpGroup, col = rank * 64;
  Barriers& s = make_barriers(2 * 2);
  unsigned char* const ring = boxes();  // a (2 boxes) and b of each stage
  unsigned char* const slot = ring + kStages * 3 * kBox + group * kBox;
  if (group == 0) {
    give_registers<40>();
    for (int i = 0; threadIdx.x == 0 && i < tiles * stages; ++i) {
      const int inner = i % stages * kInner, row = i / stages * 128 + rank * 64, at = i % kStages;
      unsigned char* const to = ring + at * 3 * kBox;
      wait(s.empty[at], i / kStages % 2 ^ 1);
      arrive_expecting(s.full[at], 3 * kBox);
      tile_copy_to(3, to + rank * kBox, maps.a, inner, row, 0, s.full[at]);
      tile_copy(to + 2 * kBox, maps.b, inner, col, 0, s.full[at]);
    }
  } else {
    take_registers<232>();
    float sums[32] = {};
    for (int i = 0; i < tiles * stages; ++i) {
      const int at = i % kStages;
      unsigned char* const from = ring + at * 3 * kBox;
      wait(s.full[at], i / kStages % 2);
      warpgroup_arrive();
      for (int step = 0; step < 4; ++step) {
        warpgroup_multiply<bfloat16, 64>(
            sums, tile_operand<Major::inner>(from + (group - 1) * kBox, step),
            tile_operand<Major::inner>(from + 2 * kBox, step), i % stages + step > 0);
      }
      warpgroup_commit();
      warpgroup_wait<0>();
      keep_in_place(sums);
      if (threadIdx.x % kWarpGroup < 2) arrive_at(s.empty[at], int(threadIdx.x) % kWarpGroup);
      if (i % stages != stages - 1) continue;
      if (threadIdx.x % kWarpGroup == 0) bulk_wait_read<0>();
      sync_some(group, kWarpGroup);
      put<bfloat16>(sums, slot);
      fence_for_copies();
      sync_some(group, kWarpGroup);
      if (threadIdx.x % kWarpGroup != 0) continue;
      tile_store(maps.y, col, i / stages * 128 + (group - 1) * 64, 0, slot);
      bulk_commit();
    }
    if (threadIdx.x % kWarpGroup == 0) bulk_wait_read<0>();
  }
  __syncwarp();
  cluster_sync();
}

// Two warp groups in turns: the first thread of each writes only when it has the word.
__global__ void __launch_bounds__(256) turns(const __grid_constant__ Maps maps, int) {
  Word& s = shared<Word>();
  const int group = int(threadIdx.x) / kWarpGroup;
  unsigned char* const box = boxes();
  auto* const values = reinterpret_cast<bfloat16*>(box);
  if (group == 1) arrive_some(1, 256);
  for (int i = 0; i < 4; ++i) {
    sync_some(1 + group, 256);
    const int last = i + group > 0 ? s.value : 0;
    sync_some(3 + group, 128);
    if (threadIdx.x % kWarpGroup == 0) s.value = last + 1;
    const int at = swizzled(2 * i + group, 2 * (int(threadIdx.x) % 64)) / 2;
    if (threadIdx.x % kWarpGroup < 64) values[at] = narrow<bfloat16>(float(last));
    if (group == 0 || i < 3) arrive_some(2 - group, 256);
  }
  for (int i = int(threadIdx.x); i < 56 * 64; i += 256) values[8 * 64 + i] = narrow<bfloat16>(0.0f);
  fence_for_copies();
  __syncthreads();
  if (threadIdx.x != 0) return;
  tile_store(maps.y, 0, 0, 0, box);
  bulk_commit();
  bulk_wait_read<0>();
}

// What lies around a matrix is zero: the box begins two rows and eight columns before it.
__global__ void __launch_bounds__(128) around(const __grid_constant__ Maps maps, int) {
  Barriers& s = make_barriers();
  unsigned char* const box = boxes();
  if (threadIdx.x == 0) {
    arrive_expecting(s.full[0], kBox);
    tile_copy(box, maps.a, -8, -2, 0, s.full[0]);
    wait(s.full[0], 0);
    tile_store(maps.y, 0, 0, 0, box);
    tile_store(maps.y, 64, 64, 0, box);
    bulk_commit();
    bulk_wait_read<0>();
  }
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiles(tmp_path_factory.mktemp("tiles") / "sim_tiles", KERNELS)


@pytest.fixture(scope="module", params=EACH_MACHINE)
def call(request: pytest.FixtureRequest, folder: Path) -> Run:
    return load_tiles(folder, KERNELS, request.param)


@pytest.fixture(scope="module")
def simulated(folder: Path) -> Run:
    return load_tiles(folder, KERNELS, "sim")


RACE = pytest.mark.parametrize("way", [{}, {"mode": "race"}], ids=["plain", "race"])


@RACE
@pytest.mark.parametrize(
    ("dtype", "a_outer", "b_outer"),
    [
        (torch.bfloat16, False, False),
        (torch.float16, False, True),
        (torch.float16, True, False),
        (torch.bfloat16, True, True),
        (torch.float32, False, False),
    ],
)
def test_a_product_of_tiles(
    call: Run, dtype: torch.dtype, a_outer: bool, b_outer: bool, way: dict[str, Any]
) -> None:
    a = matrix(dtype, 2, 104, 88, outer=a_outer)
    b = matrix(dtype, 2, 72, 88, outer=b_outer)
    check_product(call(a, b, **way), a, b)


@pytest.mark.parametrize("way", [{}, {"seed": 1}, {"mode": "race"}, {"mode": "race", "seed": 2}])
def test_roles_and_multicast(call: Run, way: dict[str, Any]) -> None:
    a, b = matrix(torch.bfloat16, 1, 360, 200), matrix(torch.bfloat16, 1, 120, 200)
    check_product(call(a, b, "roles", 384, 2, **way), a, b)


@pytest.mark.parametrize("way", [{}, {"seed": 1}, {"mode": "race"}])
def test_turns(call: Run, way: dict[str, Any]) -> None:
    x = matrix(torch.bfloat16, 1, 64, 64)
    y = call(x, x, "turns", 256, **way)
    assert y[0, :64, 0].tolist() == [*range(8)] + [0] * 56


@RACE
def test_boxes_around_a_matrix(call: Run, way: dict[str, Any]) -> None:
    x = matrix(torch.bfloat16, 1, 72, 80)
    y = call(x, x, "around", **way)
    box = torch.zeros(64, 64, dtype=x.dtype)
    box[2:, 8:] = x[0, :62, :56]
    expected = torch.zeros_like(y)
    expected[0, :64, :64] = box
    expected[0, 64:72, 64:72] = box[:8, :8]
    assert torch.equal(y, expected)


def test_rounding_to_tf32(call: Run) -> None:
    a = matrix(torch.float32, 1, 64, 32)
    ulp = 2.0**-10
    a[0, :5, 0] = torch.tensor([1 + ulp / 2, -1 - 1.5 * ulp, 3.4e38, torch.inf, torch.nan])
    b = torch.eye(32)[None]
    y = call(a, b)[0, :64, :32]
    assert y[0, 0] == 1
    assert y[1, 0] == -1 - 2 * ulp
    assert torch.equal(y[5:], to_tf32(a[0, 5:]))
    assert y[3:5].isnan().any(1).all()  # inf * 0


def test_maps_that_the_driver_refuses(simulated: Run) -> None:
    x = matrix(torch.bfloat16, 1, 64, 64)
    odd = torch.zeros(1, 64, 65, dtype=x.dtype)
    for wrong, said in [
        (odd[:, :, 1:], "its address is 2 bytes past a multiple of 16"),
        (odd, "from a row to the next there are 130 bytes"),
        (x[:, :0], "extents are from 1"),
    ]:
        with pytest.raises(
            SimulationError, match=f"tensor-map: .* x .* elements of 2 bytes: {said}"
        ):
            simulated(wrong, x)


def test_tiles_count_as_traffic(folder: Path) -> None:
    function = opforge.load(folder)
    a, b = (matrix(torch.bfloat16, 1, 64, 64).contiguous() for _ in range(2))
    with sim.active("race", traffic=True) as calls:
        function(a, b, 0, 128, 1)
    launch = calls[-1].launches[-1]
    assert launch.distinct_read == launch.bytes_read == 2 * 64 * 128
    assert launch.bytes_written == 64 * 128
    # Nothing is asked of memory for a box that is all beyond the matrix.
    assert (launch.read_requests, launch.write_requests) == (2, 1)
