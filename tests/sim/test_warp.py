# SPDX-License-Identifier: Apache-2.0
"""Warps of simulated kernels do what CUDA's documentation says."""

from __future__ import annotations

import pytest
from sim_kernels import EACH_MACHINE, WAYS, Call, load_kernels, rows, write_kernels

from opforge.errors import SimulationError

pytestmark = pytest.mark.sim

KERNELS = r"""
constexpr unsigned kAll = 0xffffffffu;

struct Tile {
  int64_t value[1024];
};

// Each lane hands its value to the one two below, among the lanes of the same parity.
__global__ void partial_syncwarp(const int64_t* x, int64_t* y) {
  Tile& tile = opforge::shared<Tile>();
  const int i = threadIdx.x, lane = i % 32;
  tile.value[i] = x[i];
  int64_t got;
  if (lane % 2 == 0) {
    __syncwarp(0x55555555u);
    got = tile.value[i - lane + (lane + 2) % 32];
  } else {
    __syncwarp(0xaaaaaaaau);
    got = tile.value[i - lane + (lane + 2) % 32];
  }
  __syncwarp();
  tile.value[i] = got;
  __syncwarp();
  y[i] = tile.value[i ^ 1];
}

// x: which shuffle, the width, then an argument for every lane.
__global__ void shuffle(const int64_t* x, int64_t* y) {
  const int lane = threadIdx.x, width = int(x[1]), argument = int(x[2 + lane]);
  const int value = 100 + lane;
  switch (x[0]) {
    case 0:
      y[lane] = __shfl_sync(kAll, value, argument, width);
      break;
    case 1:
      y[lane] = __shfl_up_sync(kAll, value, unsigned(argument), width);
      break;
    case 2:
      y[lane] = __shfl_down_sync(kAll, value, unsigned(argument), width);
      break;
    default:
      y[lane] = __shfl_xor_sync(kAll, value, argument, width);
  }
}

__global__ void shuffle_types(const int64_t*, int64_t* y) {
  const int i = threadIdx.x, other = i ^ 1;
  bool right = __shfl_xor_sync(kAll, -i, 1) == -other;
  right &= __shfl_xor_sync(kAll, 4000000000u + i, 1) == 4000000000u + other;
  right &= __shfl_xor_sync(kAll, -(1ll << 40) + i, 1) == -(1ll << 40) + other;
  right &= __shfl_xor_sync(kAll, (1ull << 63) + i, 1) == (1ull << 63) + other;
  right &= __shfl_xor_sync(kAll, i + 0.25f, 1) == other + 0.25f;
  right &= __shfl_xor_sync(kAll, i + 1e-9, 1) == other + 1e-9;
  y[i] = right;
}

// Each half of a warp on its own: ballot, all, any and the lanes with an equal value.
__global__ void votes(const int64_t* x, int64_t* y) {
  const int i = threadIdx.x;
  const int value = int(x[i]);
  int64_t* row = y + 8 * i;
  row[0] = __ballot_sync(kAll, value);
  row[1] = __all_sync(kAll, value) != 0;
  row[2] = __any_sync(kAll, value) != 0;
  row[3] = __match_any_sync(kAll, value);
  if (i < 16) {
    row[4] = __ballot_sync(0x0000ffffu, value);
    row[5] = __all_sync(0x0000ffffu, value) != 0;
    row[6] = __any_sync(0x0000ffffu, value) != 0;
    row[7] = __match_any_sync(0x0000ffffu, int64_t(value) << 32);
  } else {
    row[4] = __ballot_sync(0xffff0000u, value);
    row[5] = __all_sync(0xffff0000u, value) != 0;
    row[6] = __any_sync(0xffff0000u, value) != 0;
    row[7] = __match_any_sync(0xffff0000u, int64_t(value) << 32);
  }
}

__global__ void reductions(const int64_t* x, int64_t* y) {
  const int i = threadIdx.x;
  const unsigned u = unsigned(x[i]), mask = unsigned(x[32 + i]);
  const int s = int(u);
  int64_t* row = y + 9 * i;
  row[0] = __reduce_add_sync(mask, u);
  row[1] = __reduce_add_sync(mask, s);
  row[2] = __reduce_min_sync(mask, u);
  row[3] = __reduce_min_sync(mask, s);
  row[4] = __reduce_max_sync(mask, u);
  row[5] = __reduce_max_sync(mask, s);
  row[6] = __reduce_and_sync(mask, u);
  row[7] = __reduce_or_sync(mask, u);
  row[8] = __reduce_xor_sync(mask, u);
}

__global__ void active_lanes(const int64_t*, int64_t* y) {
  const int i = threadIdx.x;
  y[3 * i] = __activemask();
  if (i % 3 == 0) {
    y[3 * i + 1] = __activemask();
    if (i > 10) y[3 * i + 2] = __activemask();
  } else {
    y[3 * i + 1] = __activemask();
  }
}

// The lanes that are not there count as exited, so that a full mask names the rest.
__global__ void partial_warp(const int64_t*, int64_t* y) {
  Tile& tile = opforge::shared<Tile>();
  const int i = threadIdx.x, n = blockDim.x;
  tile.value[i] = i;
  __syncwarp();
  int64_t* row = y + 7 * i;
  row[0] = __ballot_sync(kAll, 1);
  row[1] = __all_sync(kAll, 1) != 0;
  row[2] = __reduce_add_sync(kAll, i);
  row[3] = __reduce_min_sync(kAll, unsigned(i));
  row[4] = __shfl_up_sync(kAll, i, 1);
  row[5] = __activemask();
  row[6] = tile.value[i + 1 < n && i % 32 < 31 ? i + 1 : i];
}
"""


@pytest.fixture(scope="module", params=EACH_MACHINE)
def call(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Call:
    folder = write_kernels(tmp_path_factory.mktemp("sim"), "sim_warp", KERNELS)
    return load_kernels(folder, request.param)


def signed(value: int) -> int:
    """A 32-bit pattern as an int."""
    return (value + 2**31) % 2**32 - 2**31


@WAYS
def test_syncwarp_waits_for_the_lanes_it_names(call: Call, way: dict[str, object]) -> None:
    x = [1000 + 3 * i for i in range(64)]
    shifted = [x[i - i % 32 + (i % 32 + 2) % 32] for i in range(64)]
    expected = [shifted[i ^ 1] for i in range(64)]
    assert call("partial_syncwarp", x, block=(64,), size=64, **way) == expected


def source(kind: str, lane: int, argument: int, width: int) -> int:
    """The lane a shuffle reads from, as the CUDA programming guide describes it."""
    first = lane // width * width
    if kind == "index":
        return first + argument % width
    if kind == "up":
        return lane - argument if lane - argument >= first else lane
    if kind == "down":
        return lane + argument if lane + argument < first + width else lane
    # Elements of earlier groups can be read, those of later ones cannot.
    return lane ^ argument if lane ^ argument < first + width else lane


KINDS = ["index", "up", "down", "xor"]
SHUFFLES = [
    (kind, width, argument)
    for kind in KINDS
    for width in (32, 16, 8)
    for argument in (0, 1, 5, width // 2, width - 1)
]
# Whole groups further than the group reaches.
BEYOND = [
    (kind, width, argument)
    for kind in KINDS
    for width in (16, 8)
    for argument in (width, width + 3, 31)
]


def shuffle(call: Call, kind: str, width: int, arguments: list[int]) -> None:
    found = call("shuffle", [KINDS.index(kind), width, *arguments], size=32)
    assert found == [100 + source(kind, lane, arguments[lane], width) for lane in range(32)]


@pytest.mark.parametrize(("kind", "width", "argument"), SHUFFLES)
def test_shuffle(call: Call, kind: str, width: int, argument: int) -> None:
    shuffle(call, kind, width, [argument] * 32)


@pytest.mark.parametrize(("kind", "width", "argument"), BEYOND)
def test_shuffle_with_an_argument_beyond_the_width(
    call: Call, kind: str, width: int, argument: int
) -> None:
    if kind == "xor" and call.machine == "sim":  # CUDA defines it, but no kernel can want it
        with pytest.raises(SimulationError, match=f"lane mask {argument}, out of range"):
            shuffle(call, kind, width, [argument] * 32)
    else:
        shuffle(call, kind, width, [argument] * 32)


def test_every_lane_names_a_lane_of_its_own(call: Call) -> None:
    shuffle(call, "index", 32, [(7 * lane + 3) % 32 for lane in range(32)])
    shuffle(call, "index", 8, [(5 * lane + 1) % 8 for lane in range(32)])
    shuffle(call, "up", 16, [lane % 5 for lane in range(32)])


def test_shuffles_of_every_type(call: Call) -> None:
    assert call("shuffle_types", size=32) == [1] * 32


@WAYS
@pytest.mark.parametrize(
    "values",
    [[0] * 32, [7] * 32, [i % 3 for i in range(32)], [1] * 16 + [0] * 16, [0] * 31 + [-1]],
)
def test_votes_and_matches(call: Call, values: list[int], way: dict[str, object]) -> None:
    def of(lanes: range, value: int) -> list[int]:
        yes = sum(1 << lane for lane in lanes if values[lane] != 0)
        mask = sum(1 << lane for lane in lanes)
        equal = sum(1 << lane for lane in lanes if values[lane] == value)
        return [yes, int(yes == mask), int(yes != 0), equal]

    expected = [
        of(range(32), value) + of(range(16) if lane < 16 else range(16, 32), value)
        for lane, value in enumerate(values)
    ]
    assert rows(call("votes", values, size=256, **way), 8) == expected


@pytest.mark.parametrize(
    "masks",
    [[0xFFFFFFFF] * 32, [0x0F0F0F0F if lane % 8 < 4 else 0xF0F0F0F0 for lane in range(32)]],
    ids=["full", "groups"],
)
def test_reductions(call: Call, masks: list[int]) -> None:
    values = [(i * 2654435761 + 12345) % 2**32 for i in range(32)]

    def of(mask: int) -> list[int]:
        u = [values[lane] for lane in range(32) if mask >> lane & 1]
        s = [signed(v) for v in u]
        both, either, odd = 0xFFFFFFFF, 0, 0
        for v in u:
            both, either, odd = both & v, either | v, odd ^ v
        extremes = [min(u), min(s), max(u), max(s)]
        return [sum(u) % 2**32, signed(sum(s)), *extremes, both, either, odd]

    found = call("reductions", [*values, *masks], size=9 * 32)
    assert rows(found, 9) == [of(mask) for mask in masks]
    assert min(values) < 2**31 < max(values)  # signed and unsigned differ


@WAYS
def test_activemask_in_divergent_code(call: Call, way: dict[str, object]) -> None:
    thirds = sum(1 << i for i in range(0, 32, 3))
    late = sum(1 << i for i in range(12, 32, 3))
    expected = [
        [0xFFFFFFFF, thirds if i % 3 == 0 else 0xFFFFFFFF ^ thirds, late if late >> i & 1 else 0]
        for i in range(32)
    ]
    assert rows(call("active_lanes", size=96, **way), 3) == expected


@WAYS
@pytest.mark.parametrize("threads", [1, 7, 40, 63])
def test_a_full_mask_in_a_partial_last_warp(
    call: Call, threads: int, way: dict[str, object]
) -> None:
    expected = []
    for i in range(threads):
        first = i - i % 32
        lanes = range(first, min(first + 32, threads))
        mask = (1 << len(lanes)) - 1
        up = i - 1 if i > first else i
        down = i + 1 if i + 1 in lanes else i
        expected.append([mask, 1, sum(lanes), first, up, mask, down])
    found = call("partial_warp", block=(threads,), size=7 * threads, **way)
    assert rows(found, 7) == expected
