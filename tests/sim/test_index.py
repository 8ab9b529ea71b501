# SPDX-License-Identifier: Apache-2.0
"""threadIdx.x of a simulated kernel is the unsigned int it is in CUDA, but for overflow.

Every case is a C++ expression and what it gives in thread t of block b, 64 threads to a block.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from sim_kernels import EACH_MACHINE, Call, line_of, load_kernels, rows, write_kernels

from opforge import sim

pytestmark = pytest.mark.sim

THREADS, BLOCKS = 64, 3
Case = tuple[str, Callable[[int, int], float]]


def u32(value: int) -> int:
    return value % 2**32


def i32(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


# --- what can be done with the value --------------------------------------------------------------

VALUES: list[Case] = [
    # arithmetic
    ("threadIdx.x + 1", lambda t, b: t + 1),
    ("threadIdx.x + 1u", lambda t, b: t + 1),
    ("5 + threadIdx.x + blockIdx.x", lambda t, b: 5 + t + b),
    ("threadIdx.x + int64_t(-1)", lambda t, b: t - 1),
    ("threadIdx.x + size_t(7)", lambda t, b: t + 7),
    ("threadIdx.x + 1.5f", lambda t, b: t + 1.5),
    ("0.25 + threadIdx.x", lambda t, b: t + 0.25),
    ("threadIdx.x + true", lambda t, b: t + 1),
    ("threadIdx.x + uint8_t(200) + short(-1) + char(3)", lambda t, b: t + 202),
    ("threadIdx.x + threadIdx.y - blockIdx.z", lambda t, b: t),
    ("threadIdx.x - 1", lambda t, b: u32(t - 1)),
    ("threadIdx.x - 1u", lambda t, b: u32(t - 1)),
    ("1 - threadIdx.x", lambda t, b: u32(1 - t)),
    ("threadIdx.x - int64_t(100)", lambda t, b: t - 100),
    ("threadIdx.x - 100.0f", lambda t, b: t - 100),
    ("threadIdx.x * 3", lambda t, b: 3 * t),
    ("threadIdx.x * -3", lambda t, b: u32(-3 * t)),
    ("threadIdx.x * 5000000000", lambda t, b: 5000000000 * t),
    ("0.5f * threadIdx.x", lambda t, b: t / 2),
    ("threadIdx.x / 3", lambda t, b: t // 3),
    ("threadIdx.x / 2.0f", lambda t, b: t / 2),
    ("-64 / (threadIdx.x + 1)", lambda t, b: u32(-64) // (t + 1)),
    ("int64_t(-64) / (threadIdx.x + 1)", lambda t, b: -(64 // (t + 1))),
    ("1000 / (threadIdx.x + 1)", lambda t, b: 1000 // (t + 1)),
    ("threadIdx.x / warpSize", lambda t, b: t // 32),
    ("threadIdx.x % 7", lambda t, b: t % 7),
    ("threadIdx.x % size_t(7)", lambda t, b: t % 7),
    ("1000 % (threadIdx.x + 1)", lambda t, b: 1000 % (t + 1)),
    ("-1000 % (threadIdx.x + 1)", lambda t, b: u32(-1000) % (t + 1)),
    ("-threadIdx.x", lambda t, b: u32(-t)),
    ("+threadIdx.x", lambda t, b: t),
    ("blockIdx.x * blockDim.x + threadIdx.x", lambda t, b: b * THREADS + t),
    ("int64_t(blockIdx.x) * blockDim.x + threadIdx.x", lambda t, b: b * THREADS + t),
    ("gridDim.x * blockDim.x", lambda t, b: BLOCKS * THREADS),
    ("float(threadIdx.x) / blockDim.x", lambda t, b: t / THREADS),
    ("(threadIdx.x + 31) / 32 * 32", lambda t, b: (t + 31) // 32 * 32),
    # bits
    ("~threadIdx.x", lambda t, b: u32(~t)),
    ("threadIdx.x & 31", lambda t, b: t & 31),
    ("threadIdx.x & 0xff00000000ff", lambda t, b: t & 0xFF),
    ("threadIdx.x | 64u", lambda t, b: t | 64),
    ("threadIdx.x | int64_t(-1)", lambda t, b: -1),
    ("threadIdx.x | -1", lambda t, b: u32(-1)),
    ("threadIdx.x ^ 5", lambda t, b: t ^ 5),
    ("threadIdx.x ^ blockIdx.x", lambda t, b: t ^ b),
    ("threadIdx.x << 3", lambda t, b: t << 3),
    ("threadIdx.x << blockIdx.x", lambda t, b: t << b),
    ("threadIdx.x >> 2", lambda t, b: t >> 2),
    ("threadIdx.x >> int64_t(2)", lambda t, b: t >> 2),
    ("threadIdx.x >> blockIdx.x", lambda t, b: t >> b),
    ("1 << (threadIdx.x % 31)", lambda t, b: 1 << t % 31),
    ("1u << (threadIdx.x % 32)", lambda t, b: 1 << t % 32),
    ("1ull << threadIdx.x", lambda t, b: 1 << t),
    ("5000000000 >> threadIdx.x", lambda t, b: 5000000000 >> t),
    ("int64_t(-64) >> threadIdx.x", lambda t, b: -64 >> t),
    # An operand smaller than int becomes one, and a shift has the type of its left side.
    ("uint8_t(200) >> (threadIdx.x % 8)", lambda t, b: 200 >> t % 8),
    ("uint8_t(200) << (threadIdx.x % 8)", lambda t, b: 200 << t % 8),
    ("true << (threadIdx.x % 8)", lambda t, b: 1 << t % 8),
    ("-64 >> (threadIdx.x % 8)", lambda t, b: -64 >> t % 8),
    # differences below zero
    ("int(threadIdx.x - 1)", lambda t, b: t - 1),
    ("(threadIdx.x - 1) / 2", lambda t, b: u32(t - 1) // 2),
    ("(threadIdx.x - 1) * 2.0", lambda t, b: u32(t - 1) * 2.0),
    ("(threadIdx.x - 1) * int64_t(2)", lambda t, b: u32(t - 1) * 2),
    ("(threadIdx.x - 1) >> 1", lambda t, b: u32(t - 1) >> 1),
    ("(threadIdx.x - 1) < 5", lambda t, b: u32(t - 1) < 5),
    ("(threadIdx.x - 1) < 0", lambda t, b: False),
    ("int64_t(threadIdx.x - 1)", lambda t, b: u32(t - 1)),
    ("float(threadIdx.x - 64) < 0", lambda t, b: False),
    ("uint8_t(threadIdx.x - 1)", lambda t, b: (t - 1) % 256),
    ("short(threadIdx.x - 64)", lambda t, b: t - 64),
    ("threadIdx.x - 1 + 1", lambda t, b: t),
    ("int(threadIdx.x - blockDim.x) / 2", lambda t, b: -((THREADS - t) // 2)),
    # comparisons
    ("threadIdx.x == 3", lambda t, b: t == 3),
    ("3u != threadIdx.x", lambda t, b: t != 3),
    ("threadIdx.x < blockIdx.x", lambda t, b: t < b),
    ("threadIdx.x >= blockDim.x - 1", lambda t, b: t == THREADS - 1),
    ("threadIdx.x < -1", lambda t, b: True),
    ("-1 < threadIdx.x", lambda t, b: False),
    ("int64_t(-1) < threadIdx.x", lambda t, b: True),
    ("threadIdx.x <= size_t(5)", lambda t, b: t <= 5),
    ("threadIdx.x > 2.5f", lambda t, b: t > 2.5),
    ("10.5 >= threadIdx.x", lambda t, b: t <= 10),
    ("threadIdx.x == true", lambda t, b: t == 1),
    ("threadIdx.x == '!'", lambda t, b: t == 33),
    ("[] { enum { kThird = 3 }; return threadIdx.x == kThird; }()", lambda t, b: t == 3),
    ("[] { enum { kThird = 3 }; return threadIdx.x * kThird; }()", lambda t, b: 3 * t),
    ("(threadIdx.x & 1) == 0", lambda t, b: t % 2 == 0),
    ("!threadIdx.x", lambda t, b: t == 0),
    ("threadIdx.x && blockIdx.x", lambda t, b: t > 0 and b > 0),
    ("threadIdx.x == 0 || blockIdx.x == 0", lambda t, b: t == 0 or b == 0),
    # choices
    ("threadIdx.x ? 1 : 2", lambda t, b: 1 if t else 2),
    ("threadIdx.x < 3 ? threadIdx.x : blockIdx.x", lambda t, b: t if t < 3 else b),
    ("threadIdx.x < 3 ? threadIdx.x : 7u", lambda t, b: t if t < 3 else 7),
    ("threadIdx.x < 3 ? threadIdx.x : 7", lambda t, b: t if t < 3 else 7),
    ("threadIdx.x < 3 ? threadIdx.x : int64_t(-1)", lambda t, b: t if t < 3 else -1),
    ("threadIdx.x < 3 ? threadIdx.x : 0.5f", lambda t, b: t if t < 3 else 0.5),
    # conversions
    ("bool(threadIdx.x)", lambda t, b: t > 0),
    ("static_cast<int>(threadIdx.x) - 2", lambda t, b: t - 2),
    ("(long)threadIdx.x - 2", lambda t, b: t - 2),
    ("unsigned{threadIdx.x}", lambda t, b: t),
    ("static_cast<unsigned long long>(threadIdx.x)", lambda t, b: t),
    ("[](int i) { return i - 2; }(threadIdx.x)", lambda t, b: t - 2),
    ("[](unsigned i) { return i - 2; }(threadIdx.x)", lambda t, b: u32(t - 2)),
    ("[](long i) { return i - 2; }(threadIdx.x)", lambda t, b: t - 2),
    ("[](long i) { return i; }(threadIdx.x - 2)", lambda t, b: u32(t - 2)),
    ("[](const int& i) { return i - 2; }(threadIdx.x)", lambda t, b: t - 2),
    ("[](float f) { return f / 2; }(threadIdx.x)", lambda t, b: t / 2),
    ("[](bool p) { return p; }(threadIdx.x)", lambda t, b: t > 0),
    ("[](auto i) { return i * 2; }(threadIdx.x)", lambda t, b: 2 * t),
    ("twice(threadIdx.x)", lambda t, b: 2 * t),
    ("twice<int>(threadIdx.x) - 1", lambda t, b: 2 * t - 1),
    ("left_neighbour()", lambda t, b: t - 1),
    ("all_kinds()", lambda t, b: 6 * t + (t > 0)),
    # functions
    ("min(threadIdx.x, 3)", lambda t, b: min(t, 3)),
    ("min(threadIdx.x, blockIdx.x)", lambda t, b: min(t, b)),
    ("max(threadIdx.x, -1)", lambda t, b: u32(-1)),
    ("max(5u, threadIdx.x)", lambda t, b: max(t, 5)),
    ("sqrtf(threadIdx.x * threadIdx.x)", lambda t, b: t),
    ("fmaf(threadIdx.x, 2, 1)", lambda t, b: 2 * t + 1),
    ("__popc(threadIdx.x)", lambda t, b: t.bit_count()),
    ("__clz(threadIdx.x)", lambda t, b: 32 - t.bit_length()),
    ("__umulhi(threadIdx.x, 0x80000000u)", lambda t, b: t // 2),
    ("__shfl_sync(~0u, threadIdx.x, 5)", lambda t, b: t - t % 32 + 5),
    ("__shfl_xor_sync(~0u, threadIdx.x - 1, 1)", lambda t, b: u32((t ^ 1) - 1)),
    ("__shfl_sync(~0u, 10 * int(threadIdx.x), threadIdx.x % 32 ^ 1)", lambda t, b: 10 * (t ^ 1)),
    ("__ballot_sync(~0u, threadIdx.x)", lambda t, b: u32(-2) if t < 32 else u32(-1)),
    ("__match_any_sync(~0u, threadIdx.x / 2)", lambda t, b: 3 << t % 32 // 2 * 2),
    ("__syncthreads_count(threadIdx.x)", lambda t, b: THREADS - 1),
    # memory
    ("table()[threadIdx.x]", lambda t, b: t * t),
    ("table()[threadIdx.x % 4u]", lambda t, b: (t % 4) ** 2),
    ("*(table() + threadIdx.x)", lambda t, b: t * t),
    ("*(threadIdx.x + table())", lambda t, b: t * t),
    ("*(table() + blockDim.x - 1 - threadIdx.x)", lambda t, b: (THREADS - 1 - t) ** 2),
    ("(table() + 64 - threadIdx.x) - table()", lambda t, b: 64 - t),
    ("&table()[threadIdx.x] - table()", lambda t, b: t),
    # what it makes of others
    ("[] { int i = 3; i += threadIdx.x; i -= 2 * threadIdx.x; return i; }()", lambda t, b: 3 - t),
    ("[] { int i = -7; i *= threadIdx.x; return i; }()", lambda t, b: -7 * t),
    ("[] { int i = 700; i /= blockDim.x; return i; }()", lambda t, b: 700 // 64),
    ("[] { int i = -7; i /= blockDim.x; return i; }()", lambda t, b: u32(-7) // 64),
    ("[] { int i = 700; i %= blockDim.x; return i; }()", lambda t, b: 700 % 64),
    ("[] { int i = -1; i &= threadIdx.x; i |= 64; return i; }()", lambda t, b: t | 64),
    ("[] { int i = 9; i ^= threadIdx.x; i <<= 2; return i; }()", lambda t, b: 4 * (t ^ 9)),
    ("[] { int i = 9; i <<= blockIdx.x; return i; }()", lambda t, b: 9 << b),
    ("[] { float f = 9; f /= blockDim.x; return f; }()", lambda t, b: 9 / 64),
    ("[] { unsigned i = 3; i -= threadIdx.x; return i; }()", lambda t, b: u32(3 - t)),
    ("[] { int64_t i = 3; i -= threadIdx.x; return i; }()", lambda t, b: 3 - t),
    ("[] { size_t i = 3; i += blockDim.x; i = threadIdx.x; return i; }()", lambda t, b: t),
    ("[] { uint8_t i = 200; i += threadIdx.x; return i; }()", lambda t, b: (200 + t) % 256),
    ("[] { float f = 3; f += threadIdx.x; f /= 64; return f; }()", lambda t, b: (3 + t) / 64),
    ("[] { double f = 3; f -= threadIdx.x; f *= gridDim.x; return f; }()", lambda t, b: 9 - 3 * t),
    ("[] { bool p = false; p |= threadIdx.x; return p; }()", lambda t, b: t > 0),
    ("[] { auto* p = table(); p += threadIdx.x; return *p; }()", lambda t, b: t * t),
    ("[] { auto* p = table() + 63; p -= threadIdx.x; return *p; }()", lambda t, b: (63 - t) ** 2),
]

# --- statements with it, and variables of its type ------------------------------------------------

STATEMENTS: list[Case] = [
    ("auto i = threadIdx.x; ++i; return i++;", lambda t, b: t + 1),
    ("auto i = threadIdx.x; --i; i--; return i;", lambda t, b: u32(t - 2)),
    ("auto i = threadIdx.x; --i; ++i; return i;", lambda t, b: t),
    ("auto i = threadIdx.x; i += 3; i -= 1u; return i;", lambda t, b: t + 2),
    ("auto i = threadIdx.x; i -= 1; return i;", lambda t, b: u32(t - 1)),
    ("auto i = threadIdx.x; i -= 1; i += 1; return i;", lambda t, b: t),
    ("auto i = threadIdx.x; i += blockDim.x; i -= blockIdx.x; return i;", lambda t, b: t + 64 - b),
    ("auto i = threadIdx.x; i += 2.75f; return i;", lambda t, b: t + 2),
    ("auto i = threadIdx.x; i += int64_t(5); return i;", lambda t, b: t + 5),
    ("auto i = threadIdx.x; i += (1ll << 32) + 5; return i;", lambda t, b: t + 5),
    ("auto i = threadIdx.x; i *= 3; i /= 2; return i;", lambda t, b: 3 * t // 2),
    ("auto i = threadIdx.x; i %= 5; return i;", lambda t, b: t % 5),
    ("auto i = threadIdx.x; i &= 12; i |= 32; i ^= 5u; return i;", lambda t, b: (t & 12 | 32) ^ 5),
    ("auto i = threadIdx.x; i <<= 2; i >>= 1; return i;", lambda t, b: 2 * t),
    ("auto i = threadIdx.x; i = 7; return i;", lambda t, b: 7),
    ("auto i = threadIdx.x; i = -1; return i;", lambda t, b: u32(-1)),
    ("auto i = threadIdx.x; i = i / 2 + 1; return i;", lambda t, b: t // 2 + 1),
    ("auto i = threadIdx.x; i = int64_t(i) * 2; return i;", lambda t, b: 2 * t),
    ("auto i = threadIdx.x, n = blockDim.x; return n - i;", lambda t, b: 64 - t),
    ("int k = -64; k >>= blockIdx.x; return k;", lambda t, b: -64 >> b),
    ("auto n = threadIdx.x; int k = 0; while (n--) ++k; return k;", lambda t, b: t),
    ("int k = 0; for (auto s = blockDim.x / 2; s > 0; s >>= 1) ++k; return k;", lambda t, b: 6),
    ("int k = 0; for (auto s = blockDim.x / 2; s; s /= 2) ++k; return k;", lambda t, b: 6),
    (
        "int k = 0; for (auto i = threadIdx.x; i < 200; i += blockDim.x) ++k; return k;",
        lambda t, b: (199 - t) // 64 + 1,
    ),
    (
        "switch (int(threadIdx.x)) { case 0: return 5; case 3: return 6; default: return 7; }",
        lambda t, b: {0: 5, 3: 6}.get(t, 7),
    ),
    (
        "switch (int(threadIdx.x % 3)) { case 0: return 5; default: return 7; }",
        lambda t, b: 7 if t % 3 else 5,
    ),
    ("return __reduce_add_sync(~0u, threadIdx.x);", lambda t, b: 496 + t // 32 * 1024),
    ("return __reduce_max_sync(~0u, threadIdx.x);", lambda t, b: t | 31),
    ("return __reduce_min_sync(~0u, threadIdx.x);", lambda t, b: t & ~31),
    ("return __reduce_or_sync(~0u, threadIdx.x);", lambda t, b: t | 31),
    ("const dim3 shape = blockDim; return shape.x + shape.y;", lambda t, b: 65),
    ("const dim3 place(threadIdx); return place.x;", lambda t, b: t),
]

# The other arm decides the type where one is a class and the other is not: int here, which gives
# another value than CUDA's unsigned where it is negative and then made wider.
WRONG: list[Case] = [
    ("threadIdx.x < 3 ? threadIdx.x : -1", lambda t, b: t if t < 3 else u32(-1)),
    ("threadIdx.x < 3 ? threadIdx.x - 1 : 0", lambda t, b: u32(t - 1) if t < 3 else 0),
]

# --- what goes above the range --------------------------------------------------------------------

OVERFLOWS = {
    "unsigned i = threadIdx.x * 0x80000000u": (2, "unsigned int", 2**32),
    "int i = threadIdx.x * 0x40000000": (2, "int", 2**31),
    "int64_t i = threadIdx.x * 0x80000000u": (2, "unsigned int", 2**32),
    "double i = threadIdx.x * 0x80000000u": (2, "unsigned int", 2**32),
    "bool i = threadIdx.x * 0x80000000u < 5": (2, "unsigned int", 2**32),
    "unsigned i = (threadIdx.x << 31) / 2": (2, "unsigned int", 2**32),
    "int64_t i = int64_t(1) + threadIdx.x * 0x55555556u": (3, "unsigned int", 2**32 + 2),
    "unsigned i = threadIdx.x + 0xfffffff0u": (16, "unsigned int", 2**32),
    "int i = threadIdx.x + 0x7ffffff0": (16, "int", 2**31),
    "int i = 5; i += threadIdx.x * 0x40000000": (2, "int", 2**31 + 5),
    "int i = 0x7fffffff; i += threadIdx.x": (1, "int", 2**31),
    "auto i = threadIdx.x; i += 0xffffffffu; unsigned j = i": (1, "unsigned int", 2**32),
    "int i = (blockDim.x + 1) * (threadIdx.x + 1) * 0x800000": (3, "int", 260 * 2**23),
}
FITS = [
    "unsigned i = threadIdx.x % 2 * 0xffffffffu",
    "int i = threadIdx.x % 2 * 0x7fffffff",
    "int64_t i = threadIdx.x * int64_t(0x80000000)",
    "int64_t i = int64_t(threadIdx.x) * 0x80000000u",
    "unsigned i = unsigned(threadIdx.x) * 2654435761u",
    "unsigned i = threadIdx.x - 0x80000000u; int j = threadIdx.x - 64",
    "int i = threadIdx.x * -0x1000000",
    "int i = threadIdx.x * 0x80000000u - threadIdx.x * 0x7fffffffu",
    "float i = threadIdx.x * 1e20f",
]

FUNCTIONS = r"""
template <class T>
__device__ T twice(T value) {
  return value + value;
}
__device__ int left_neighbour() {
  int left = threadIdx.x - 1;
  return left;
}
__device__ float all_kinds() {
  const int i = threadIdx.x;
  const unsigned u = threadIdx.x;
  const size_t s = threadIdx.x;
  const float f = threadIdx.x;
  const double d = threadIdx.x;
  const short h = threadIdx.x;
  const bool p = threadIdx.x;
  return i + u + s + f + d + h + p;
}
__device__ const int squares[64] = {SQUARES};
__device__ const int* table() { return squares; }
__device__ void put(int64_t* y, int k, double value) {
  std::memcpy(&y[(k * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x], &value, 8);
}
""".replace("SQUARES", ", ".join(str(i * i) for i in range(64)))


def all_cases(name: str, expressions: list[str]) -> str:
    puts = [f"  put(y, {k}, double({e}));" for k, e in enumerate(expressions)]
    return "\n".join([f"__global__ void {name}(const int64_t*, int64_t* y) {{", *puts, "}\n"])


def one_each(name: str, statements: list[str]) -> str:
    cases = [f"  if (x[0] == {k}) {{ {s}; y[1] = i; }}" for k, s in enumerate(statements)]
    return "\n".join([f"__global__ void {name}(const int64_t* x, int64_t* y) {{", *cases, "}\n"])


KERNELS = (
    FUNCTIONS
    + all_cases("values", [e for e, _ in VALUES + WRONG])
    + one_each("overflows", list(OVERFLOWS))
    + one_each("fits", FITS)
)
LAMBDAS = FUNCTIONS + all_cases("statements", [f"[] {{ {e} }}()" for e, _ in STATEMENTS])

Results = dict[str, list[list[float]]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sim")


@pytest.fixture(scope="module", params=EACH_MACHINE)
def call(request: pytest.FixtureRequest, place: Path) -> Call:
    return load_kernels(write_kernels(place, "sim_index", KERNELS), request.param)


def results(call: Call, kernel: str, cases: list[Case]) -> Results:
    size = len(cases) * BLOCKS * THREADS
    found = call(kernel, grid=(BLOCKS,), block=(THREADS,), size=size)
    doubles = list(struct.unpack(f"{size}d", struct.pack(f"{size}q", *found)))
    each = rows(doubles, BLOCKS * THREADS)
    return {text: rows(v, THREADS) for (text, _), v in zip(cases, each, strict=True)}


@pytest.fixture(scope="module")
def values(call: Call) -> Results:
    return results(call, "values", VALUES + WRONG)


@pytest.fixture(scope="module", params=EACH_MACHINE)
def statements(request: pytest.FixtureRequest, place: Path) -> Results:
    folder = write_kernels(place, "sim_index_statements", LAMBDAS)
    return results(load_kernels(folder, request.param), "statements", STATEMENTS)


def expected(case: Case) -> list[list[float]]:
    return [[float(case[1](t, b)) for t in range(THREADS)] for b in range(BLOCKS)]


@pytest.mark.parametrize("case", VALUES, ids=[text for text, _ in VALUES])
def test_value(values: Results, case: Case) -> None:
    assert values[case[0]] == expected(case)


@pytest.mark.parametrize("call", ["sim"], indirect=True)
@pytest.mark.xfail(strict=True, reason="C++ has no way to say what a class makes of ?:")
@pytest.mark.parametrize("case", WRONG, ids=[text for text, _ in WRONG])
def test_known_to_differ(values: Results, case: Case) -> None:
    assert values[case[0]] == expected(case)


@pytest.mark.parametrize("case", STATEMENTS, ids=[text for text, _ in STATEMENTS])
def test_statement(statements: Results, case: Case) -> None:
    assert statements[case[0]] == expected(case)


@pytest.mark.parametrize("call", ["sim"], indirect=True)
@pytest.mark.parametrize("mode", ["plain", "race"])
@pytest.mark.parametrize("statement", OVERFLOWS)
def test_overflow_is_reported(call: Call, statement: str, mode: str) -> None:
    thread, kind, exact = OVERFLOWS[statement]
    with pytest.raises(sim.SimulationError) as failure:
        call("overflows", [list(OVERFLOWS).index(statement)], block=(64,), size=2, mode=mode)
    text = str(failure.value)
    assert f"index-overflow: thread ({thread},0,0) of block (0,0,0)" in text
    assert f" {exact}, which does not fit an {kind}\n" in text
    assert f"cuda.cu:{line_of(KERNELS, statement)} in overflows" in text


@pytest.mark.parametrize("statement", FITS)
def test_what_fits_is_not(call: Call, statement: str) -> None:
    call("fits", [FITS.index(statement)], block=(64,), size=2)
