# SPDX-License-Identifier: Apache-2.0
"""The random words of rng.h and cpu_rng.h are Philox4x32-10's, for every element the right one."""

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
#include <opforge/rng.h>

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
  const double p[] = {0.0, 1e-12, 0.25, 0.5, 1 - 0x1p-32, 1.0};
  for (int i = 0; i < 6; ++i) y[i] = opforge::drop_threshold(p[i]);
}
"""
WIDTHS = [1, 2, 3, 4, 5, 6, 8, 13, 16]

CPU = """
#include <opforge/cpu_rng.h>
#include <opforge/host.h>

static opforge::Tensor words(const opforge::Tensor& like, int64_t seed, int64_t first, int64_t n) {
  const opforge::Tensor y = opforge::empty({&n, 1}, like);
  opforge::RandomWords<256> random;
  const uint32_t* drawn = random.draw(seed, first, n);
  for (int64_t i = 0; i < n; ++i) opforge::mutable_data<int64_t>(y)[i] = drawn[i];
  return y;
}

OPFORGE_IMPL(random_words, words)
"""
CPU_OP = """
import torch
from opforge import Op

op = Op(
    schema="random_words(Tensor like, int seed, int first, int n) -> Tensor y",
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


def words(seed: int, first: int, n: int) -> list[int]:
    return [philox(seed, i // 4)[i % 4] for i in range(first, first + n)]


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


@pytest.mark.parametrize("first", [0, 1, 2, 3, 4, 2**32 - 3, 2**34 - 2, 2**40 + 7])
def test_every_width_and_start_takes_the_words_of_its_elements(call: Call, first: int) -> None:
    seed, threshold = 0x0123456789ABCDEF, 1 << 31
    got = call("widths", [seed, first, threshold], block=(1,), size=sum(WIDTHS))
    right = [word >= threshold for word in words(seed, first, 16)]
    assert got == [kept for n in WIDTHS for kept in right[:n]]


def test_the_threshold_is_the_probability(call: Call) -> None:
    got = call("thresholds", block=(1,), size=6)
    assert got == [0, 0, 1 << 30, 1 << 31, MASK, MASK]
    seed, element = 2850057, 712  # found by search: its word is the highest there is
    assert words(seed, element, 1) == [MASK]
    for threshold, kept in ((0, 1), (MASK - 1, 1), (MASK, 0)):
        assert call("widths", [seed, element, threshold], block=(1,), size=sum(WIDTHS))[0] == kept


def test_the_vectors_of_the_cpu_give_the_same_words(tmp_path: Path) -> None:
    folder = write_op(tmp_path / "random_words", op_py=CPU_OP, cpp=CPU)
    draw = opforge.load(folder)
    like = torch.zeros(1, dtype=torch.int64)
    for seed in (0, -1, 0x0123456789ABCDEF):
        for first in (0, 1, 6, 15, 2**34 - 18, 2**40 + 7):
            for n in (1, 4, 16, 17, 256):
                assert draw(like, seed, first, n).tolist() == words(seed % 2**64, first, n)
