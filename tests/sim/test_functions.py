# SPDX-License-Identifier: Apache-2.0
"""CUDA's atomics and device functions, simulated, give the results they give on a GPU."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import pytest
import torch
from helpers import python
from sim_kernels import EACH_MACHINE, Call, load_kernels, rows, write_kernels

from opforge.errors import SimulationError

pytestmark = pytest.mark.sim

KERNELS = r"""
#include <cstdio>

// --- atomics -------------------------------------------------------------------------------------

template <class T>
__device__ T* slot(int64_t* y, int k) {
  return reinterpret_cast<T*>(y + k);
}

__global__ void atomics(const int64_t*, int64_t* y) {
  const unsigned n = gridDim.x * blockDim.x;
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(slot<int>(y, 0), -3);
  atomicAdd(slot<unsigned>(y, 1), 0x10001u);
  atomicAdd(slot<unsigned long long>(y, 2), (1ull << 33) + 1);
  atomicAdd(slot<float>(y, 3), 0.5f);
  atomicAdd(slot<double>(y, 4), 0.25);
  atomicSub(slot<int>(y, 5), int(i));
  atomicSub(slot<unsigned>(y, 6), 1u);
  atomicMin(slot<int>(y, 7), 5 - int(i));
  atomicMax(slot<int>(y, 8), int(i) - 5);
  atomicMin(slot<unsigned>(y, 9), n - i);  // nothing is less than zero
  atomicMax(slot<unsigned>(y, 10), 0xfffffff0u - i);
  atomicMin(slot<long long>(y, 11), -(1ll << 40) - i);
  atomicMax(slot<unsigned long long>(y, 12), (1ull << 40) + i);
  atomicOr(slot<unsigned>(y, 13), 1u << (i % 31));
  atomicXor(slot<unsigned>(y, 14), i);
  atomicXor(slot<unsigned long long>(y, 15), (unsigned long long)(i) << 20);
  // What was exchanged for something else, and what is left, is everything once.
  const unsigned long long before = atomicExch(slot<unsigned long long>(y, 16), i + 1ull);
  atomicAdd(slot<unsigned long long>(y, 17), before);
  int* counter = slot<int>(y, 18);
  for (int seen = atomicAdd(counter, 0), old; (old = atomicCAS(counter, seen, seen + 2)) != seen;) {
    seen = old;
  }
  atomicInc(slot<unsigned>(y, 19), 999u);
  atomicDec(slot<unsigned>(y, 20), 999u);
  const int ticket = atomicAdd(slot<int>(y, 21), 1);
  y[32 + ticket] += 1;
  if (i % 2 == 1) atomicAnd(slot<unsigned>(y, 22), ~(1u << (i % 32)));
  for (int k = 0; k < 64; ++k) atomicAdd(slot<int>(y, 23), 1);  // all at once
}

struct Two {
  unsigned u;
  int s;
};

// One thread, so that every step's result is known.
__global__ void atomic_steps(const int64_t*, int64_t* y) {
  Two& two = opforge::shared<Two>();
  unsigned* p = &two.u;
  int* q = &two.s;
  *p = 7;
  *q = -7;
  int k = 0;
  const auto step = [&](int64_t returned) {
    y[k++] = returned;
    y[k++] = *p;
    y[k++] = *q;
  };
  step(atomicAdd(q, 3));
  step(atomicExch(p, 12u));
  step(atomicInc(p, 12u));
  step(atomicInc(p, 12u));
  step(atomicDec(p, 5u));
  step(atomicDec(p, 5u));
  step(atomicExch(p, 9u));
  step(atomicDec(p, 5u));
  step(atomicCAS(p, 4u, 1u));
  step(atomicCAS(p, 5u, 1u));
  step(atomicMin(q, 2));
  step(atomicMax(q, 2));
  step(atomicAnd(q, 3));
  step(atomicOr(q, 8));
  step(atomicXor(q, 3));
  step(atomicSub(p, 2u));
}

__global__ void local_atomic(const int64_t*, int64_t* y) {
  int own = 3;
  atomicAdd(&own, 4);  // only global and shared memory have atomics
  y[threadIdx.x] = own;
}

// A Packed goes by st.global, whatever the address.
__global__ void packed_elsewhere(const int64_t* x, int64_t* y) {
  struct Shared {
    alignas(16) float own[4];
  };
  alignas(16) float own[4];
  float* const to[] = {opforge::shared<Shared>().own, own};
  const auto v = opforge::load_packed<4>(reinterpret_cast<const float*>(y));
  if (threadIdx.x != 0) return;
  opforge::store<4>(reinterpret_cast<float*>(y), v);  // that is fine
  opforge::store<4>(to[x[0]], v);
}

// --- functions -----------------------------------------------------------------------------------

__global__ void talk(const int64_t*, int64_t*) {
  if (threadIdx.x == 1) printf("block %d of %d, %s, %.2f\n", blockIdx.x, gridDim.x, "hello", 1.25);
}

__global__ void extremes(const int64_t*, int64_t* y) {
  const float nan = __int_as_float(0x7fc00000);
  const double all[] = {
      double(min(3, 5)),
      double(max(3, 5)),
      double(min(-1, 1u)),  // as unsigned
      double(max(-1, 1u)),
      double(min(-1ll, 1ull)),  // as unsigned long long
      double(max(-1l, 1l)),
      double(min(1ull << 40, 7ull)),
      double(max(1ull << 40, 7ll)),
      double(min(1.5f, 2.5f)),
      double(max(1.5f, 2.5)),
      double(min(2.0, 1.5f)),
      double(min(nan, 1.0f)),
      double(max(2.0f, nan)),
      double(fminf(nan, 3.0f)),
      double(fmaxf(4.0f, nan)),
      double(min(threadIdx.x, 5)),
      double(max(blockDim.x, 1000u)),
  };
  int k = 0;
  for (const double value : all) std::memcpy(&y[k++], &value, sizeof value);
}

__global__ void integers(const int64_t* x, int64_t* y) {
  const unsigned a = unsigned(x[2 * threadIdx.x]), b = unsigned(x[2 * threadIdx.x + 1]);
  const unsigned long long wide = (unsigned long long)(a) << 32 | b;
  int64_t* row = y + 10 * threadIdx.x;
  row[0] = __umulhi(a, b);
  row[1] = __mulhi(int(a), int(b));
  row[2] = __clz(int(a));
  row[3] = __ffs(int(a));
  row[4] = __popc(a);
  row[5] = __clzll((long long)(wide));
  row[6] = __popcll(wide);
  row[7] = int64_t(__umul64hi(wide, wide));
  row[8] = __float_as_int(__int_as_float(int(a)));
  row[9] = __float_as_uint(__uint_as_float(b));
}

__global__ void casts(const int64_t*, int64_t* y) {
  y[0] = __float_as_int(1.5f);
  y[1] = __float_as_uint(-2.0f);
  y[2] = __int_as_float(0x40490fdb) == 3.14159274f;
  y[3] = __uint_as_float(0xff800000u) < -1e38f;
}

// a * a is 1 + 2^-11 + 2^-24, one bit more than a float has.
__global__ void fused(const int64_t* x, int64_t* y) {
  const float a = __int_as_float(int(x[0])), c = __int_as_float(int(x[1]));
  y[0] = __float_as_int(fmaf(a, a, c));
  y[1] = __float_as_int(__fmaf_rn(a, a, c));
  y[2] = __float_as_int(__fadd_rn(__fmul_rn(a, a), c));
  y[3] = __float_as_int(a * a + c);  // rounded twice here, as the source says
  const double d = double(a) * 0x1p-20 + 1, e = -(d * d);
  y[4] = fma(d, d, e) != 0;
}

template <class T>
__device__ int64_t widened(uint16_t bits) {
  T value;
  std::memcpy(&value, &bits, 2);
  const float wide = opforge::widen(value);
  const T narrowed = opforge::narrow<T>(wide);
  uint16_t back;
  std::memcpy(&back, &narrowed, 2);
  return int64_t(__float_as_uint(wide)) << 16 | back;
}
template <class T>
__device__ int64_t narrowed(float wide) {
  const T value = opforge::narrow<T>(wide);
  uint16_t bits;
  std::memcpy(&bits, &value, 2);
  return bits;
}

__global__ void small_floats(const int64_t* x, int64_t* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
  y[i] = widened<opforge::half>(uint16_t(i));
  y[n + i] = widened<opforge::bfloat16>(uint16_t(i));
  y[2 * n + i] = narrowed<opforge::half>(__int_as_float(int(x[i])));
  y[3 * n + i] = narrowed<opforge::bfloat16>(__int_as_float(int(x[i])));
}

// In units of the last place of one.
__global__ void rsqrt_errors(const int64_t* x, int64_t* y) {
  const double v = double(x[threadIdx.x]), r = rsqrt(v);
  const float f = rsqrt(float(v));
  y[2 * threadIdx.x] = int64_t((double(f) * sqrt(v) - 1) * 0x1p23);
  y[2 * threadIdx.x + 1] = int64_t((r * sqrt(v) - 1) * 0x1p52);
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_kernels(tmp_path_factory.mktemp("sim"), "sim_functions", KERNELS)


@pytest.fixture(scope="module", params=EACH_MACHINE)
def call(request: pytest.FixtureRequest, folder: Path) -> Call:
    return load_kernels(folder, request.param)


def signed(value: int) -> int:
    """A 32-bit pattern as an int."""
    return (value + 2**31) % 2**32 - 2**31


def bits(value: float) -> int:
    return struct.unpack("i", struct.pack("f", value))[0]


# --- atomics --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 2])
def test_atomics_of_many_blocks(call: Call, seed: int | None) -> None:
    n = 256 * 256  # enough for the blocks to be spread over host threads
    found = call("atomics", grid=(256,), block=(256,), size=32 + n, seed=seed)
    low = [v % 2**32 for v in found]
    exclusive = 0
    for i in range(n):
        exclusive ^= i
    assert signed(low[0]) == -3 * n
    assert low[1] == 0x10001 * n % 2**32
    assert found[2] == ((1 << 33) + 1) * n
    assert low[3] == bits(0.5 * n)
    assert struct.unpack("d", struct.pack("q", found[4])) == (0.25 * n,)
    assert low[5] == -sum(range(n)) % 2**32
    assert low[6] == -n % 2**32
    assert signed(low[7]) == 5 - (n - 1)
    assert low[8] == n - 1 - 5
    assert low[9] == 0
    assert low[10] == 0xFFFFFFF0
    assert found[11] == -(1 << 40) - (n - 1)
    assert found[12] == (1 << 40) + n - 1
    assert low[13] == 2**31 - 1
    assert low[14] == exclusive
    assert found[15] == exclusive << 20
    assert found[16] + found[17] == sum(range(1, n + 1))
    assert low[18] == 2 * n
    assert low[19] == n % 1000
    assert low[20] == -n % 1000
    assert low[21] == n
    assert found[32:] == [1] * n  # each ticket was given once
    assert low[22] == 0
    assert low[23] == 64 * n


def test_what_atomics_return_and_leave(call: Call) -> None:
    expected = [
        (-7, 7, -4),  # Add
        (7, 12, -4),  # Exch
        (12, 0, -4),  # Inc at the limit
        (0, 1, -4),  # Inc
        (1, 0, -4),  # Dec
        (0, 5, -4),  # Dec at zero
        (5, 9, -4),  # Exch
        (9, 5, -4),  # Dec above the limit
        (5, 5, -4),  # CAS that fails
        (5, 1, -4),  # CAS
        (-4, 1, -4),  # Min
        (-4, 1, 2),  # Max
        (2, 1, 2),  # And
        (2, 1, 10),  # Or
        (10, 1, 9),  # Xor
        (1, 0xFFFFFFFF, 9),  # Sub
    ]
    found = call("atomic_steps", block=(1,), size=3 * len(expected))
    assert rows(found, 3) == [list(step) for step in expected]


# --- functions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["sim"], indirect=True)
def test_an_atomic_on_a_local_variable_is_a_fault(call: Call) -> None:
    with pytest.raises(SimulationError, match=r"bad-address: thread \(0,0,0\).*local variable"):
        call("local_atomic", size=32)


@pytest.mark.parametrize("call", ["sim"], indirect=True)
@pytest.mark.parametrize(("kind", "memory"), [(0, "shared memory"), (1, "a local variable")])
def test_a_store_for_global_memory_elsewhere_is_a_fault(call: Call, kind: int, memory: str) -> None:
    with pytest.raises(SimulationError, match=rf"bad-address: .*stores a Packed to {memory}"):
        call("packed_elsewhere", [kind], size=8)


def test_printf(call: Call, capfd: pytest.CaptureFixture[str]) -> None:
    call("talk", grid=(2,))
    ctypes.CDLL(None).fflush(None)
    printed = capfd.readouterr().out
    assert printed == "block 0 of 2, hello, 1.25\nblock 1 of 2, hello, 1.25\n"


def test_printf_is_out_when_the_call_returns(folder: Path) -> None:
    code = """
        import os, sys
        from pathlib import Path

        sys.path.insert(0, sys.argv[1])
        from sim_kernels import EACH_MACHINE, load_kernels

        load_kernels(Path(sys.argv[2]))("talk")
        os.write(1, b"returned\\n")
    """
    support = Path(__file__).parents[1] / "support"
    done = python(code, support, folder, environment={"PYTHONUNBUFFERED": ""})
    assert done.stdout == "block 0 of 1, hello, 1.25\nreturned\n"


def test_min_and_max_of_mixed_kinds(call: Call) -> None:
    expected = [3, 5, 1, 2**32 - 1, 1, 1, 7, 2**40, 1.5, 2.5, 1.5, 1, 2, 3, 4, 0, 1000]
    found = call("extremes", block=(1,), size=len(expected))
    assert list(struct.unpack(f"{len(found)}d", struct.pack(f"{len(found)}q", *found))) == expected


def test_integer_intrinsics(call: Call) -> None:
    pairs = [
        (0, 0),
        (1, 0x80000000),
        (0x80000000, 0x80000000),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x00010000, 0x12345678),
        (0x7F800001, 0x7FC00000),  # NaNs keep their bits
        (0xDEADBEEF, 0xCAFEBABE),
        (6, 0),
    ]

    def of(a: int, b: int) -> list[int]:
        wide = a << 32 | b
        high = wide * wide >> 64
        return [
            a * b >> 32,
            signed(a) * signed(b) >> 32,
            32 - a.bit_length(),
            (a & -a).bit_length(),
            a.bit_count(),
            64 - wide.bit_length(),
            wide.bit_count(),
            high - 2**64 if high >= 2**63 else high,
            signed(a),
            b,
        ]

    found = call("integers", [v for pair in pairs for v in pair], block=(len(pairs),), size=80)
    assert rows(found, 10) == [of(*pair) for pair in pairs]


def test_casts_keep_the_bits(call: Call) -> None:
    assert call("casts", block=(1,), size=4) == [0x3FC00000, 0xC0000000, 1, 1]


def test_fmaf_rounds_once(call: Call) -> None:
    found = call("fused", [bits(1 + 2**-12), bits(-1 - 2**-11)], block=(1,), size=5)
    plain = 0 if call.machine == "sim" else bits(2**-24)  # nvcc fuses a * a + c by default
    assert found == [bits(2**-24), bits(2**-24), 0, plain, 1]


def test_rsqrt_is_nearly_exact(call: Call) -> None:
    y = call("rsqrt_errors", [3**i for i in range(32)], size=64)
    assert all(abs(error) <= 2 for error in y)


def test_half_and_bfloat16(call: Call) -> None:
    patterns = torch.arange(65536).to(torch.int32)
    generator = torch.Generator().manual_seed(0)
    wide = torch.randint(-(2**31), 2**31, (65536,), generator=generator).to(torch.int32)
    # Half of them where float16 has its numbers, and ties.
    wide[::2] = (torch.randn(32768, generator=generator) * 2.0**-10).view(torch.int32)
    wide[::4] &= ~0x1FFF
    wide[::8] |= 0x1000
    wide[1::4] = wide[1::4] & ~0xFFFF | 0x8000
    found = torch.tensor(
        call("small_floats", wide.tolist(), grid=(256,), block=(256,), size=4 * 65536)
    ).view(4, 65536)
    for row, dtype in enumerate((torch.float16, torch.bfloat16)):
        small = patterns.to(torch.int16).view(dtype)
        number = ~small.isnan()
        widened = (found[row] >> 16).to(torch.int32)
        assert torch.equal(widened.view(torch.float32)[number], small.float()[number])
        assert torch.equal((found[row] & 0xFFFF)[number], patterns.long()[number])
        back = (found[row] & 0xFFFF).to(torch.int16).view(dtype)
        assert widened.view(torch.float32)[~number].isnan().all()
        assert back[~number].isnan().all()
        narrowed = found[2 + row].to(torch.int16).view(dtype)
        torch.testing.assert_close(
            narrowed, wide.view(torch.float32).to(dtype), rtol=0, atol=0, equal_nan=True
        )
