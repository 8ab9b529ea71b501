// SPDX-License-Identifier: Apache-2.0
// A formula's sums down the columns on the GPU, while it also writes results for the elements: the
// gradients of what repeats in all rows. See algorithms/columns.cuh. Includes no torch header.
#pragma once

#include <opforge/algorithms/columns.cuh>
#include <opforge/families/formula/rows.cuh>

namespace opforge {

// f gets an element of each operand, then values per column, then values per row. It returns
// Values: the results, and last what is added up. Out is the type of the sums.
template <class T, class Out, class F, int Wholes, int Columns, int RowsGiven, int Outs>
struct FormulaColumns {
  using Element = Out;
  using A = compute_t<T>;
  static constexpr int kBlocks = 1;
  Matrix<const T> in[at_least_one(Wholes)];
  Matrix<T> out[at_least_one(Outs)];
  GivenValues<T> of_column[at_least_one(Columns)], of_row[at_least_one(RowsGiven)];
  F f;

  struct Cursor {
    int64_t row;
    const T* in[at_least_one(Wholes)];
    T* out[at_least_one(Outs)];
  };
  template <int N>
  struct Loaded {
    Vec<T, N> in[at_least_one(Wholes)];
    A of_row[at_least_one(RowsGiven)];
  };

  __device__ __forceinline__ Cursor start(int64_t, int64_t row, int64_t col) const {
    Cursor c;
    c.row = row;
#pragma unroll
    for (int k = 0; k < Wholes; ++k) c.in[k] = in[k].at(row, col);
#pragma unroll
    for (int k = 0; k < Outs; ++k) c.out[k] = out[k].at(row, col);
    return c;
  }
  __device__ __forceinline__ Cursor skip(Cursor c, int64_t rows) const {
    c.row += rows;
#pragma unroll
    for (int k = 0; k < Wholes; ++k) c.in[k] += rows * in[k].row_stride;
#pragma unroll
    for (int k = 0; k < Outs; ++k) c.out[k] += rows * out[k].row_stride;
    return c;
  }

  template <int N, bool Whole>
  __device__ __forceinline__ Loaded<N> load(const Cursor& c, const Span& span) const {
    Loaded<N> loaded;
#pragma unroll
    for (int k = 0; k < RowsGiven; ++k) loaded.of_row[k] = of_row[k].at(c.row);
#pragma unroll
    for (int k = 0; k < Wholes; ++k) {
      if constexpr (Whole) {
        loaded.in[k] = opforge::load<N>(c.in[k]);
      } else {
#pragma unroll
        for (int e = 0; e < N; ++e) {
          if (e >= span.lo && e < span.hi) loaded.in[k].value[e] = c.in[k][e];
        }
      }
    }
    return loaded;
  }

  // With the values of a thread's columns.
  template <int M>
  struct Bound;

  template <int N>
  __device__ __forceinline__ Bound<N> bind(const Span& span) const {
    Bound<N> result{*this};
#pragma unroll
    for (int k = 0; k < Columns; ++k) {
#pragma unroll
      for (int e = 0; e < N; ++e) {
        if (e >= span.lo && e < span.hi) result.value[k][e] = of_column[k].at(span.col + e);
      }
    }
    return result;
  }
};

template <class T, class Out, class F, int Wholes, int Columns, int RowsGiven, int Outs>
template <int M>
struct FormulaColumns<T, Out, F, Wholes, Columns, RowsGiven, Outs>::Bound
    : FormulaColumns<T, Out, F, Wholes, Columns, RowsGiven, Outs> {
  A value[at_least_one(Columns)][M];

  template <int N, bool Whole>
  __device__ __forceinline__ void use(const Cursor& c, const Span& span, const Loaded<N>& loaded,
                                      A (&sum)[N]) const {
    Vec<T, N> made[at_least_one(Outs)];
#pragma unroll
    for (int e = 0; e < N; ++e) {
      if (Whole || (e >= span.lo && e < span.hi)) {
        const Values<A, Outs + 1> values =
            call(e, loaded, std::make_index_sequence<Wholes>(), std::make_index_sequence<Columns>(),
                 std::make_index_sequence<RowsGiven>());
        sum[e] += values[Outs];
#pragma unroll
        for (int k = 0; k < Outs; ++k) {
          made[k].value[e] = narrow<T>(values[k]);
          if constexpr (!Whole) c.out[k][e] = made[k].value[e];
        }
      }
    }
    if constexpr (Whole) {
#pragma unroll
      for (int k = 0; k < Outs; ++k) store<N>(c.out[k], made[k]);
    }
  }

 private:
  template <int N, size_t... I, size_t... J, size_t... K>
  __device__ __forceinline__ Values<A, Outs + 1> call(int e, const Loaded<N>& loaded,
                                                      std::index_sequence<I...>,
                                                      std::index_sequence<J...>,
                                                      std::index_sequence<K...>) const {
    return {this->f(widen(loaded.in[I].value[e])..., value[J][e]..., loaded.of_row[K]...)};
  }
};

}  // namespace opforge
