// SPDX-License-Identifier: Apache-2.0
// A formula over rows on the GPU, in steps: each adds up something of the row (or finds the largest
// of it), and may use what the steps before it have found. Then come new rows, numbers per row, or
// both. Every row is read once, see algorithms/rows.cuh. Includes no torch header.
//
// x / sqrt(mean(x²) + eps) * weight, for example:
//
//   struct Normed {
//     double eps, cols;
//     static constexpr int kSteps = 1;
//
//     // What is known of a row: values that are given per row, then what the steps find.
//     template <class V>
//     struct Row {
//       V scale;
//     };
//     // What an element adds to the sums of a step. Elements come first, then values per column.
//     template <class V>
//     OPFORGE_FORMULA Sums<V, 1> term(Step<0>, const Row<V>& row, V x, V weight) const {
//       return {x * x};
//     }
//     // What follows from the sums.
//     template <class V>
//     OPFORGE_FORMULA void settle(Step<0>, Row<V>& row, const Sums<V, 1>& sum) const {
//       row.scale = rsqrt(sum[0] / number<V>(cols) + number<V>(eps));
//     }
//     // An element of each new row.
//     template <class V>
//     OPFORGE_FORMULA Values<V, 1> result(const Row<V>& row, V x, V weight) const {
//       return {x * row.scale * weight};
//     }
//     // Numbers per row: Values<V, 1> of_row(const Row<V>& row) const
//   };
#pragma once

#include <opforge/families/formula/values.h>

#include <opforge/algorithms/rows.cuh>
#include <opforge/families/formula/device.cuh>
#include <utility>

namespace opforge {

// A value per row or per column: in the element type, or in the one that is computed in.
template <class T>
struct GivenValues {
  const void* data = nullptr;
  bool wide = false;
  int64_t stride = 1;  // 0: one value for all

  __device__ __forceinline__ compute_t<T> at(int64_t i) const {
    if (wide) return static_cast<const compute_t<T>*>(data)[i * stride];
    return widen(static_cast<const T*>(data)[i * stride]);
  }
  // N of them, as one vector where that is possible.
  template <int N>
  __device__ __forceinline__ void read(int64_t i, compute_t<T> (&out)[N]) const {
    const T* from = static_cast<const T*>(data) + i;
    if (!wide && stride == 1 && misalignment(from, sizeof(Packed<T, N>)) == 0) {
      return widen(load_packed<N>(from), out);
    }
#pragma unroll
    for (int e = 0; e < N; ++e) out[e] = at(i + e);
  }
};

// Where numbers per row go, likewise.
template <class T>
struct RowResult {
  void* data = nullptr;
  bool wide = false;

  __device__ __forceinline__ void write(int64_t row, compute_t<T> value) const {
    if (wide) {
      static_cast<compute_t<T>*>(data)[row] = value;
    } else {
      static_cast<T*>(data)[row] = narrow<T>(value);
    }
  }
};

// An array may be empty.
__host__ __device__ constexpr int at_least_one(int n) { return n > 0 ? n : 1; }

template <class T, class F, int Wholes, int Columns, int RowsGiven, int Outs, int RowOuts>
struct FormulaRows : WithoutParams {
  using Element = T;
  using A = compute_t<T>;
  using Row = typename F::template Row<A>;
  static constexpr bool kAnyRow = true;
  // Three operands in four vectors each would not fit the registers.
  template <bool Ragged>
  using Holds =
      std::conditional_t<(Wholes > 2), Holdings<Hold<2, 512, 2, 2>>, Holdings<HoldUsual<2>>>;

  Rows<const T> in[Wholes];
  GivenValues<T> of_column[at_least_one(Columns)], of_row[at_least_one(RowsGiven)];
  T* out[at_least_one(Outs)];
  RowResult<T> row_out[at_least_one(RowOuts)];
  int64_t cols;
  F f;

  struct Cursor {
    int64_t row;
    const T* in[Wholes];
  };
  template <int N>
  struct Loaded {
    Packed<T, N> in[Wholes];
    int64_t col;
  };

  __device__ __forceinline__ Cursor start(int64_t row) const {
    Cursor c;
    c.row = row;
#pragma unroll
    for (int k = 0; k < Wholes; ++k) c.in[k] = in[k].at(row);
    return c;
  }
  __device__ __forceinline__ const T* first(const Cursor& c) const { return c.in[0]; }

  template <int N>
  __device__ __forceinline__ Loaded<N> load(const Cursor& c, int64_t col) const {
    Loaded<N> loaded;
    loaded.col = col;
#pragma unroll
    for (int k = 0; k < Wholes; ++k) loaded.in[k] = load_packed<N>(c.in[k] + col);
    return loaded;
  }
  template <int N>
  __device__ __forceinline__ void prepare(const Cursor&, int64_t, Loaded<N>&, bool) const {}

  template <class Each, class Total>
  __device__ __forceinline__ Row settle(const Cursor& c, const Each& each,
                                        const Total& total) const {
    Row row = [&]<size_t... K>(std::index_sequence<K...>) {
      return Row{of_row[K].at(c.row)...};
    }(std::make_index_sequence<RowsGiven>());
    steps<0>(row, each, total);
    return row;
  }

  template <int N>
  __device__ __forceinline__ Packed<T, N> result(const Cursor& c, int64_t col,
                                                 const Loaded<N>& loaded, NoParams,
                                                 const Row& row) const {
    if constexpr (Outs == 0) {
      return Packed<T, N>();
    } else {
      Wide<N> wide;
      wide.read(*this, loaded);
      A made[Outs][N];
#pragma unroll
      for (int e = 0; e < N; ++e) {
        const auto values = wide.call(e, [&](auto... x) { return f.result(row, x...); });
#pragma unroll
        for (int k = 0; k < Outs; ++k) made[k][e] = values[k];
      }
#pragma unroll
      for (int k = 1; k < Outs; ++k) store<N>(out[k] + c.row * cols + col, narrow<T>(made[k]));
      return narrow<T>(made[0]);
    }
  }
  template <int N>
  __device__ __forceinline__ void write(const Cursor& c, int64_t col, const Packed<T, N>& v) const {
    if constexpr (Outs > 0) store<N>(out[0] + c.row * cols + col, v);
  }
  __device__ __forceinline__ void finish(const Cursor& c, const Row& row) const {
    if constexpr (RowOuts > 0) {
      const auto values = f.of_row(row);
#pragma unroll
      for (int k = 0; k < RowOuts; ++k) row_out[k].write(c.row, values[k]);
    }
  }

 private:
  // The elements of a vector of each operand, in the type they are computed in.
  template <int N>
  struct Wide {
    A value[Wholes + Columns][N];

    __device__ __forceinline__ void read(const FormulaRows& visitor, const Loaded<N>& loaded) {
#pragma unroll
      for (int k = 0; k < Wholes; ++k) widen(loaded.in[k], value[k]);
#pragma unroll
      for (int k = 0; k < Columns; ++k) {
        visitor.of_column[k].template read<N>(loaded.col, value[Wholes + k]);
      }
    }
    template <class G>
    __device__ __forceinline__ auto call(int e, const G& g) const {
      return [&]<size_t... K>(std::index_sequence<K...>) {
        return g(value[K][e]...);
      }(std::make_index_sequence<Wholes + Columns>());
    }
  };

  template <int step, class Each, class Total>
  __device__ __forceinline__ void steps(Row& row, const Each& each, const Total& total) const {
    if constexpr (step < F::kSteps) {
      const auto term = [&](auto... x) { return f.term(Step<step>(), row, x...); };
      decltype(Wide<1>().call(0, term)) all;
      each([&]<int N>(const Loaded<N>& loaded) {
        Wide<N> wide;
        wide.read(*this, loaded);
        auto own = wide.call(0, term);  // by itself, so that vectors are added side by side
#pragma unroll
        for (int e = 1; e < N; ++e) own += wide.call(e, term);
        all += own;
      });
      f.settle(Step<step>(), row, total(all));
      steps<step + 1>(row, each, total);
    }
  }
};

}  // namespace opforge
