// SPDX-License-Identifier: Apache-2.0
// A result per row, or new rows, from functions of single elements: the shortest way to an op that
// adds something up over each row. Every row is read once, see rows.cuh. Includes no torch header.
#pragma once

#include <opforge/algorithms/rows.cuh>
#include <utility>

namespace opforge {

// A few numbers side by side: what is added up over a row, or an element of each new row.
template <class A, int N>
struct Several {
  A value[N] = {};

  __device__ __forceinline__ void operator+=(const Several& other) {
#pragma unroll
    for (int k = 0; k < N; ++k) value[k] += other.value[k];
  }
  __device__ __forceinline__ A operator[](int k) const { return value[k]; }
};

namespace detail {

// What F makes of so many numbers of type A.
template <class F, class A, size_t... K>
auto term_of(std::index_sequence<K...>)
    -> decltype(std::declval<F>().term((void(K), std::declval<A>())...));

}  // namespace detail

// What the visitors below share. F computes with an element of each input, all at the same place,
// in the type A that they are computed in:
//
//   template <class A>
//   struct ShareOfRow {  // y = x / sum(x) of each row
//     // What an element adds to the totals of its row.
//     __device__ Several<A, 1> term(A x) const { return {x}; }
//     // What follows from the totals, for a row of so many columns.
//     __device__ A settle(const Several<A, 1>& totals, A cols) const { return totals[0]; }
//     // An element of each new row: for new_rows() alone.
//     __device__ Several<A, 1> result(A sum, A x) const { return {x / sum}; }
//   };
template <class T, int Inputs, class F>
struct RowFunction : WithoutParams, HeldAsUsual {
  using Element = T;
  using A = compute_t<T>;
  static constexpr bool kAnyRow = true;
  Rows<const T> in[Inputs];
  int64_t cols;
  F f;

  using Totals = decltype(detail::term_of<F, A>(std::make_index_sequence<Inputs>()));
  using Settled = decltype(std::declval<F>().settle(std::declval<Totals>(), A()));

  struct Cursor {
    int64_t row;
    const T* in[Inputs];
  };
  template <int N>
  struct Loaded {
    Packed<T, N> in[Inputs];
  };

  __device__ __forceinline__ Cursor start(int64_t row) const {
    Cursor c;
    c.row = row;
#pragma unroll
    for (int k = 0; k < Inputs; ++k) c.in[k] = in[k].at(row);
    return c;
  }
  __device__ __forceinline__ const T* first(const Cursor& c) const { return c.in[0]; }

  template <int N>
  __device__ __forceinline__ Loaded<N> load(const Cursor& c, int64_t col) const {
    Loaded<N> loaded;
#pragma unroll
    for (int k = 0; k < Inputs; ++k) loaded.in[k] = load_packed<N>(c.in[k] + col);
    return loaded;
  }
  template <int N>
  __device__ __forceinline__ void prepare(const Cursor&, int64_t, Loaded<N>&, bool) const {}

  template <class Each, class Total>
  __device__ __forceinline__ Settled settle(const Cursor&, const Each& each,
                                            const Total& total) const {
    const auto term = [&](auto... x) { return f.term(x...); };
    Totals all;
    each([&]<int N>(const Loaded<N>& loaded) {
      Wide<N> wide;
      wide.read(loaded);
      Totals own = wide.call(0, term);  // by itself, so that vectors are added side by side
#pragma unroll
      for (int e = 1; e < N; ++e) own += wide.call(e, term);
      all += own;
    });
    return f.settle(total(all), A(cols));
  }

 protected:
  // The elements of a vector of each input, in the type they are computed in.
  template <int N>
  struct Wide {
    A in[Inputs][N];

    __device__ __forceinline__ void read(const Loaded<N>& loaded) {
#pragma unroll
      for (int k = 0; k < Inputs; ++k) widen(loaded.in[k], in[k]);
    }
    // What f makes of the elements at e.
    template <class G>
    __device__ __forceinline__ auto call(int e, const G& g) const {
      return call(e, g, std::make_index_sequence<Inputs>());
    }
    template <class G, size_t... K>
    __device__ __forceinline__ auto call(int e, const G& g, std::index_sequence<K...>) const {
      return g(in[K][e]...);
    }
  };
};

// Writes what settle() returns: a number per row.
template <class T, int Inputs, class F>
struct NumberPerRow : RowFunction<T, Inputs, F> {
  using Base = RowFunction<T, Inputs, F>;
  using typename Base::A, typename Base::Cursor, typename Base::Settled;
  T* out;

  __device__ __forceinline__ void finish(const Cursor& c, Settled settled) const {
    out[c.row] = narrow<T>(settled);
  }
  template <int N>
  __device__ __forceinline__ Packed<T, N> result(const Cursor&, int64_t,
                                                 const typename Base::template Loaded<N>&, NoParams,
                                                 const Settled&) const {
    return Packed<T, N>();
  }
  template <int N>
  __device__ __forceinline__ void write(const Cursor&, int64_t, const Packed<T, N>&) const {}
};

// Writes what result() returns: a new row for each of its numbers. All but the first are written at
// once, which is result() of a visitor's only chance to have several.
template <class T, int Inputs, int Outputs, class F>
struct NewRows : RowFunction<T, Inputs, F> {
  using Base = RowFunction<T, Inputs, F>;
  using typename Base::A, typename Base::Cursor, typename Base::Settled;
  T* out[Outputs];

  __device__ __forceinline__ void finish(const Cursor&, const Settled&) const {}

  template <int N>
  __device__ __forceinline__ Packed<T, N> result(const Cursor& c, int64_t col,
                                                 const typename Base::template Loaded<N>& loaded,
                                                 NoParams, const Settled& settled) const {
    typename Base::template Wide<N> wide;
    wide.read(loaded);
    A made[Outputs][N];
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const auto values = wide.call(e, [&](auto... x) { return this->f.result(settled, x...); });
#pragma unroll
      for (int k = 0; k < Outputs; ++k) made[k][e] = values[k];
    }
#pragma unroll
    for (int k = 1; k < Outputs; ++k) {
      store<N>(out[k] + c.row * this->cols + col, narrow<T>(made[k]));
    }
    return narrow<T>(made[0]);
  }
  template <int N>
  __device__ __forceinline__ void write(const Cursor& c, int64_t col, const Packed<T, N>& v) const {
    store<N>(out[0] + c.row * this->cols + col, v);
  }
};

}  // namespace opforge
