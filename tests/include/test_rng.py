# SPDX-License-Identifier: Apache-2.0
"""The random bits of rng.h and cpu/rng.h are Philox4x32-10's, for every element the right ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import write_op
from sim_kernels import EACH_MACHINE, Call, load_kernels, write_kernels

import opforge

MASK = 2**32 - 1
ONES = 2**64 - 1

# The test vectors published with Random123: key, counter (low and high 64 bits), the four words.
KNOWN = [
    (0, 0, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    (ONES, ONES, ONES, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        0x299F31D0A4093822,
        0x85A308D3243F6A88,
        0x0370734413198A2E,
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]

KERNELS = """
#include <opforge/core/rng.h>

using opforge::keep;

__global__ void known(const int64_t* x, int64_t* y) {
  const auto w = opforge::philox(x[0], x[1], x[2]);
  for (int i = 0; i < 4; ++i) y[i] = w.word[i];
}

template <int N>
__device__ int64_t* kept(const int64_t* x, int64_t* y) {
  bool k[N];
  keep<N>(x[0], x[1], x[2], k);
  for (int i = 0; i < N; ++i) *y++ = k[i];
  return y;
}

template <int N>
__device__ int64_t* bits(const int64_t* x, int64_t* y) {
  *y++ = opforge::kept_bits<N>(x[0], x[1], x[2]);
  *y++ = opforge::kept_bits<N>(x[0], x[1] & -int64_t(N), x[2]);  // the compiler sees a multiple
  return y;
}

__global__ void packed(const int64_t* x, int64_t* y) {
  y = bits<1>(x, y);
  y = bits<2>(x, y);
  y = bits<4>(x, y);
  y = bits<8>(x, y);
  bits<16>(x, y);
}

__global__ void widths(const int64_t* x, int64_t* y) {
  y = kept<1>(x, y);
  y = kept<2>(x, y);
  y = kept<3>(x, y);
  y = kept<4>(x, y);
  y = kept<5>(x, y);
  y = kept<6>(x, y);
  y = kept<8>(x, y);
  y = kept<13>(x, y);
  kept<16>(x, y);
}

__global__ void thresholds(const int64_t*, int64_t* y) {
  const double p[] = {0.0, 0x0.fffp-17, 0x1p-17, 0x1p-16, 0.1, 0.5, 1 - 0x1p-16, 1 - 0x1p-40, 1.0};
  for (int i = 0; i < 9; ++i) {
    const double scale = opforge::kept_scale(p[i]);
    y[2 * i] = opforge::drop_threshold(p[i]);
    memcpy(y + 2 * i + 1, &scale, sizeof scale);
  }
}
"""
WIDTHS = [1, 2, 3, 4, 5, 6, 8, 13, 16]
PACKED = [1, 2, 4, 8, 16]
# How many of 65536 halves are dropped for each p of the kernel `thresholds`.
DROPPED = [0, 0, 1, 1, 6554, 32768, 65535, 65535, 65536]

CPU = """
#include <opforge/cpu/rng.h>
#include <opforge/host.h>

static opforge::Tensor halves(const opforge::Tensor& like, int64_t seed, int64_t first, int64_t n) {
  const opforge::Tensor y = opforge::empty({&n, 1}, like);
  opforge::RandomHalves<256> random;
  const uint16_t* drawn = random.draw(seed, first, n);
  for (int64_t i = 0; i < n; ++i) opforge::mutable_data<int64_t>(y)[i] = drawn[i];
  return y;
}

OPFORGE_IMPL(random_halves, halves)
"""
CPU_OP = """
import torch
from opforge import Op

op = Op(
    schema="random_halves(Tensor like, int seed, int first, int n) -> Tensor y",
    reference=lambda like, seed, first, n: like.new_zeros(n),
    dtypes=(torch.int64,),
)
"""


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def philox(key: int, counter: int) -> list[int]:
    """The algorithm as published, in Python's integers."""
    c = [counter >> 32 * i & MASK for i in range(4)]
    k = [key & MASK, key >> 32 & MASK]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & MASK, a >> 32 ^ c[3] ^ k[1], a & MASK]
        k = [k[0] + 0x9E3779B9 & MASK, k[1] + 0xBB67AE85 & MASK]
    return c


def halves(seed: int, first: int, n: int) -> list[int]:
    return [
        philox(seed, i // 8)[i % 8 // 2] >> (16 if i % 2 else 0) & 0xFFFF
        for i in range(first, first + n)
    ]


@pytest.fixture(scope="module", params=EACH_MACHINE)
def call(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Call:
    name = f"rng_{request.param}"
    folder = write_kernels(tmp_path_factory.mktemp("rng"), name, KERNELS)
    return load_kernels(folder, request.param)


@pytest.mark.parametrize(("key", "low", "high", "expected"), KNOWN)
def test_philox_gives_the_published_words(
    call: Call, key: int, low: int, high: int, expected: list[int]
) -> None:
    assert philox(key, low | high << 64) == expected
    assert call("known", [signed(key), signed(low), signed(high)], block=(1,), size=4) == expected


@pytest.mark.parametrize("first", [*range(17), 2**32 - 3, 2**35 - 2, 2**40 + 7])
def test_every_width_and_start_takes_the_halves_of_its_elements(call: Call, first: int) -> None:
    seed = 0x0123456789ABCDEF
    for threshold in (1 << 15, *halves(seed, first, 1)):  # at the threshold an element stays
        arguments = [seed, first, threshold << 16]
        kept = {
            start: [int(half >= threshold) for half in halves(seed, start, 16)]
            for start in range(max(first - 15, 0), first + 1)
        }
        got = call("widths", arguments, block=(1,), size=sum(WIDTHS))
        assert got == [one for n in WIDTHS for one in kept[first][:n]]
        got = call("packed", arguments, block=(1,), size=2 * len(PACKED))
        starts = [(n, start) for n in PACKED for start in (first, first // n * n)]
        assert got == [sum(one << e for e, one in enumerate(kept[s][:n])) for n, s in starts]


def test_the_threshold_is_the_probability_rounded(call: Call) -> None:
    got = call("thresholds", block=(1,), size=2 * len(DROPPED))
    assert got[::2] == [d << 16 if d < 65536 else MASK for d in DROPPED]
    scales = torch.tensor(got[1::2]).view(torch.float64)
    assert scales.tolist() == [65536 / (65536 - d) if d < 65536 else 0 for d in DROPPED]


def test_the_highest_half_stays_unless_all_are_dropped(call: Call) -> None:
    seed, element = 2850057, 1424  # found by search: all bits of its word are ones
    assert halves(seed, element, 2) == [0xFFFF, 0xFFFF]
    for threshold, kept in ((0, 1), (0xFFFF << 16, 1), (MASK, 0)):
        arguments = [seed, element, threshold]
        each = call("widths", arguments, block=(1,), size=sum(WIDTHS))
        assert each[:3] == [kept] * 3  # keep<1> and keep<2>
        bits = call("packed", arguments, block=(1,), size=2 * len(PACKED))
        assert bits[:4] == [kept, kept, 3 * kept, 3 * kept]


def test_the_vectors_of_the_cpu_give_the_same_halves(tmp_path: Path) -> None:
    folder = write_op(tmp_path / "random_halves", op_py=CPU_OP, cpp=CPU)
    draw = opforge.load(folder)
    like = torch.zeros(1, dtype=torch.int64)
    for seed in (0, -1, 0x0123456789ABCDEF):
        for first in (*range(9), 15, 2**35 - 18, 2**40 + 7):
            for n in (1, 4, 16, 33, 256):
                assert draw(like, seed, first, n).tolist() == halves(seed % 2**64, first, n)
