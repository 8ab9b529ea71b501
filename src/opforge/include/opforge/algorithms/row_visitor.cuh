// SPDX-License-Identifier: Apache-2.0
// What algorithms/rows.cuh asks of a visitor: what it loads, adds up and writes, and how its rows
// are held. Includes no torch header.
#pragma once

#include <opforge/core/vec.h>

#include <concepts>
#include <type_traits>

namespace opforge {

constexpr int kHeld = 4;  // vectors of a row that a thread holds, usually

// How a row is held: `Vectors` per thread (0: not at all), in a block of up to `Threads` threads
// (and never more than kRowThreads). The registers of a multiprocessor must do for `Blocks` such
// blocks. A visitor's parameters are loaded for `ParamsAtOnce` vectors at a time.
template <int Vectors, int Threads, int Blocks, int ParamsAtOnce>
struct Hold {
  static constexpr int kVectors = Vectors, kThreads = Threads, kBlocks = Blocks;
  static constexpr int kParamsAtOnce = ParamsAtOnce;
};
// Blocks have kRowThreads at most: 576 only limits the kernel to 56 registers a thread.
template <int ParamsAtOnce>
using HoldUsual = Hold<kHeld, 576, 2, ParamsAtOnce>;
using HoldNothing = Hold<0, 576, 2, 1>;
// Half as many vectors per thread, and twice the threads: faster where there is little to do.
using HoldLittle = Hold<2, 512, 3, 2>;

// What a visitor chooses by the length of its rows: up to 1024 vectors are short, up to 1536
// middle, and more long, or middle if there are less than kManyRows. `Few` is for short rows of
// up to kFewVectors in all.
template <class Short, class Middle = Short, class Long = Middle, class Few = Short>
struct Holdings {
  using OfShort = Short;
  using OfFew = Few;
  using OfMiddle = Middle;
  using OfLong = Long;
};

// What is added up over a row, by +=. All threads must get the same bits, so a += b and b += a must
// give the same. To add Total() changes nothing.
template <class Total>
concept RowTotal = std::is_trivially_copyable_v<Total> && std::default_initializable<Total> &&
                   requires(Total total, const Total other) { total += other; };

// For visitors that hold rows of all lengths alike.
struct HeldAsUsual {
  template <bool Ragged>
  using Holds = Holdings<HoldUsual<2>>;
};

// For visitors that need nothing but the row for a result.
struct NoParams {};
struct WithoutParams {
  template <int N, bool Ragged>
  using Params = NoParams;
  template <int N, bool Ragged, class Cursor>
  __device__ __forceinline__ NoParams load_params(const Cursor&, int64_t) const {
    return {};
  }
};

namespace detail {

// Stand-ins for what map_rows gives a visitor's settle().
struct EachLoaded {
  template <class Body>
  __device__ void operator()(Body&&) const;
};
struct TotalOfRow {
  template <RowTotal Total>
  __device__ Total operator()(const Total&) const;
};

}  // namespace detail

// What map_rows asks of a visitor, here with vectors of N columns. Its members, in the order of
// use:
//
//   Cursor start(row)            where the row is in each operand
//   first(cursor)                the row's address in one operand: its alignment decides where
//                                vectors begin, and is that of all operands
//   Loaded<N> load<N>(cursor, col)
//                                N columns of the operands. It does nothing else: all loads of a
//                                row are under way before the first is used
//   prepare(cursor, col, loaded, again)
//                                may change what was loaded, and write it; `again` in a later pass
//                                over a row that is not held
//   Params<N, Ragged> load_params<N, Ragged>(cursor, col)
//                                what else a result takes. It may be called before settle() or
//                                after it
//   settle(cursor, each, total)  what follows from the row: each(f) calls f(loaded) for all that
//                                this thread has of it; total(t) adds t up over the row's threads.
//                                Both may be called several times, total() by all threads
//   result(cursor, col, loaded, params, settled)
//                                N columns of the new row
//   write(cursor, col, result)
//   finish(cursor, settled)      at last, by one thread of the row
//   Holds<Ragged>                how rows are held, a Holdings
//   kAnyRow                      whether it also takes what is rare: rows that do not fit the
//                                registers (see can_hold), and vectors of one element. If not, no
//                                kernels are compiled for them, and the caller must not pass them
//
// A visitor that divides each row by its sum:
//
//   template <class T>
//   struct DivideBySum : WithoutParams, HeldAsUsual {
//     using Element = T;
//     using A = compute_t<T>;
//     static constexpr bool kAnyRow = true;
//     Rows<const T> x;
//     T* y;
//     int64_t cols;
//     struct Cursor { int64_t row; const T* x; };
//     template <int N> struct Loaded { Packed<T, N> x; };
//
//     __device__ Cursor start(int64_t row) const { return {row, x.at(row)}; }
//     __device__ const T* first(const Cursor& c) const { return c.x; }
//     template <int N> __device__ Loaded<N> load(const Cursor& c, int64_t col) const {
//       return {load_packed<N>(c.x + col)};
//     }
//     template <int N> __device__ void prepare(const Cursor&, int64_t, Loaded<N>&, bool) const {}
//     template <class Each, class Total>
//     __device__ A settle(const Cursor&, const Each& each, const Total& total) const {
//       Sum<A> sum;
//       each([&]<int N>(const Loaded<N>& in) {
//         A v[N];
//         widen(in.x, v);
//         for (int e = 0; e < N; ++e) sum.value += v[e];
//       });
//       return total(sum).value;
//     }
//     __device__ void finish(const Cursor&, A) const {}
//     template <int N> __device__ Packed<T, N> result(const Cursor&, int64_t, const Loaded<N>& in,
//                                                     NoParams, A sum) const {
//       A v[N];
//       widen(in.x, v);
//       for (int e = 0; e < N; ++e) v[e] /= sum;
//       return narrow<T>(v);
//     }
//     template <int N> __device__ void write(const Cursor& c, int64_t col, Packed<T, N> v) const {
//       store<N>(y + c.row * cols + col, v);
//     }
//   };
template <class V, int N = 1>
concept RowVisitor = requires(const V visitor, const typename V::Cursor cursor,
                              typename V::template Loaded<N> loaded,
                              const typename V::template Params<N, false> params, int64_t row,
                              int64_t col, detail::EachLoaded each, detail::TotalOfRow total) {
  typename V::Element;
  typename V::template Holds<false>::OfLong;
  typename V::template Holds<true>::OfLong;
  { V::kAnyRow } -> std::convertible_to<bool>;
  { visitor.start(row) } -> std::same_as<typename V::Cursor>;
  { visitor.first(cursor) } -> std::convertible_to<const typename V::Element*>;
  { visitor.template load<N>(cursor, col) } -> std::same_as<typename V::template Loaded<N>>;
  visitor.prepare(cursor, col, loaded, false);
  visitor.finish(cursor, visitor.settle(cursor, each, total));
  {
    visitor.template load_params<N, false>(cursor, col)
  } -> std::same_as<typename V::template Params<N, false>>;
  {
    visitor.result(cursor, col, loaded, params, visitor.settle(cursor, each, total))
  } -> std::same_as<Packed<typename V::Element, N>>;
  visitor.write(cursor, col, Packed<typename V::Element, N>{});
};

}  // namespace opforge
