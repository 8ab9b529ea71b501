# SPDX-License-Identifier: Apache-2.0
"""A visitor that lacks what a header asks for is a compile error that names the concept."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass

import pytest
from helpers import PATIENCE

from opforge.build import toolchain
from opforge.build.cpu import cpu_flags
from opforge.build.plan import INCLUDE_DIR
from opforge.build.targets import SIM_INCLUDE_DIR

# The headers for the CPU leave it to the binding, which includes torch.
PARALLEL_FOR = """
    template <class F>
    void parallel_for(int64_t n, int64_t, const F& body) { body(int64_t(0), n); }
    """


@dataclass(frozen=True)
class Example:
    """A program that compiles, but not without one of its parts."""

    concept: str
    header: str
    program: str
    part: str  # what the wrong visitor does without
    instead: str = ""


COLUMNS = Example(
    "ColumnVisitor",
    "algorithms/columns.cuh",
    """
    struct Sum {
      using Element = float;
      static constexpr int kBlocks = 2;
      Matrix<const float> x;
      struct Cursor { const float* x; };
      template <int N> struct Loaded { Vec<float, N> x; };
      __device__ Cursor start(int64_t, int64_t row, int64_t col) const { return {x.at(row, col)}; }
      __device__ Cursor skip(Cursor c, int64_t rows) const { return {c.x + rows * x.row_stride}; }
      template <int N, bool Whole> __device__ Loaded<N> load(const Cursor& c, const Span& s) const {
        Loaded<N> in;
        for (int e = s.lo; e < s.hi; ++e) in.x.value[e] = c.x[e];
        return in;
      }
      template <int N, bool Whole> __device__ void use(const Cursor&, const Span& s,
                                                       const Loaded<N>& in, float (&sum)[N]) const {
        for (int e = s.lo; e < s.hi; ++e) sum[e] += in.x.value[e];
      }
    };
    void run(const Sum& sum, float* out) {
      sum_columns<4>(plan_columns<float, 4>(1, 8, 8, sum.x), sum, nullptr, out, nullptr);
    }
    """,
    "__device__ Cursor skip(Cursor c, int64_t rows) const { return {c.x + rows * x.row_stride}; }",
)
ELEMENTS = Example(
    "ElementFunction",
    "algorithms/elementwise.cuh",
    """
    struct Add {
      __device__ float operator()(float a, float b) const { return a + b; }
    };
    void run(const Layout<3>& layout, const float* x, float* out) {
      elementwise<float, 2>(layout, out, {x, x}, Add{}, nullptr);
    }
    """,
    "float b) const { return a + b; }",
    "float b, float c) const { return a + b + c; }",
)
NUMBERED_ELEMENTS = Example(
    "ElementFunction",
    "algorithms/elementwise.cuh",
    """
    struct Number {
      struct At {
        int64_t first;
        __device__ float operator()(int e, float) const { return float(first + e); }
      };
      template <int N> __device__ At at(int64_t first) const { return {first}; }
    };
    void run(const Layout<2>& layout, const float* x, float* out) {
      elementwise<float, 1>(layout, out, {x}, Number{}, nullptr);
    }
    """,
    "int e, float)",
    "float e)",
)
GATE = Example(
    "Activation",
    "families/gated/kernel.cuh",
    """
    struct Square {
      __device__ float value(float x) const { return x * x; }
      __device__ float gradient(float x, float passed, float& value) const {
        value = x * x;
        return 2 * x * passed;
      }
    };
    void run(const Layout<3>& layout, const float* x, float* out) {
      gated_forward(layout, out, x, x, Square{}, nullptr);
    }
    """,
    "float gradient(",
    "float slope(",
)
CPU_COLUMNS = Example(
    "RowPieceVisitor",
    "cpu/columns.h",
    """
    void run(const float* x, float* out) {
      sum_columns(8, 8, out, [&](int64_t row, int64_t col, int64_t n, sum_t<float>* sums) {
        for (int64_t j = 0; j < n; ++j) sums[j] += x[row * 8 + col + j];
      });
    }
    """,
    "sum_t<float>* sums",
    "float* sums",
)
CPU_ELEMENTS = Example(
    "VectorFunction",
    "cpu/elementwise.h",
    """
    void run(const Layout<3>& layout, const float* x, float* out) {
      elementwise(layout, out, {x, x}, [](vec<float> a, vec<float> b) { return a + b; });
    }
    """,
    "vec<float> a, vec<float> b",
    "vec<float> a, vec<double> b",
)
CPU_NUMBERED_ELEMENTS = Example(
    "VectorFunction",
    "cpu/elementwise.h",
    """
    struct Number {
      auto row(int64_t first, int64_t) const {
        return [first](int64_t i, vec<float> v) { return v + float(first + i); };
      }
    };
    void run(const Layout<2>& layout, const float* x, float* out) {
      elementwise(layout, out, {x}, Number{});
    }
    """,
    "int64_t i, vec<float> v",
    "const char* i, vec<float> v",
)
CPU_GATE = Example(
    "Activation",
    "families/gated/cpu.h",
    """
    struct Square {
      vec<float> value(vec<float> x) const { return x * x; }
      vec<float> gradient(vec<float> x, vec<float> passed, vec<float>& value) const {
        value = x * x;
        return 2 * x * passed;
      }
    };
    void run(const Layout<3>& layout, const float* x, float* out) {
      gated_forward(layout, out, x, x, Square{});
    }
    """,
    "value(vec<float> x)",
    "value_of(vec<float> x)",
)
NIGHTLY = [pytest.mark.nightly]
EXAMPLES = [
    COLUMNS,
    ELEMENTS,
    NUMBERED_ELEMENTS,
    GATE,
    CPU_COLUMNS,
    CPU_ELEMENTS,
    CPU_NUMBERED_ELEMENTS,
    CPU_GATE,
]


def errors(header: str, program: str) -> str:
    """What g++ says of a program for the CPU, or for the simulator."""
    if header.startswith("cpu/") or "/cpu" in header:
        program = PARALLEL_FOR + program
        flags = toolchain.cpu_level(platform.machine(), cpu_flags())
    else:
        flags = ["-DUSE_CUDA", "-DOPFORGE_SIM", f"-I{SIM_INCLUDE_DIR}"]
    command = [toolchain.find_cxx().path, "-std=c++20", "-fsyntax-only", f"-I{INCLUDE_DIR}", *flags]
    source = f"#include <opforge/{header}>\nnamespace opforge {{{program}}}\n"
    done = subprocess.run(
        [*command, "-x", "c++", "-"],
        input=source,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "LC_ALL": "C"},  # plain quotation marks
    )
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize(
    "example",
    [e if e in (COLUMNS, CPU_COLUMNS) else pytest.param(e, marks=NIGHTLY) for e in EXAMPLES],
    ids=lambda e: f"{e.concept}-{e.header}",
)
def test_a_wrong_visitor_is_told_which_concept_it_misses(example):
    assert errors(example.header, example.program) == ""
    assert example.program.count(example.part) == 1
    told = errors(example.header, example.program.replace(example.part, example.instead))
    assert "constraints not satisfied" in told, told
    assert f"the satisfaction of '{example.concept}<" in told, told
