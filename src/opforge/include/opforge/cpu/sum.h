// SPDX-License-Identifier: Apache-2.0
// Deterministic sums on the CPU, any strides, on torch's threads. Includes no torch header.
#pragma once

#include <opforge/cpu/elementwise.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace opforge {

// Every sum below is cut into blocks by its shape alone, never by the number of threads, and the
// blocks are summed by the same rules: the same bits every time. 16-bit numbers are summed
// in float; of float, four numbers are added as they are and the rest is done in double, which
// takes no longer than reading them and leaves hardly an error but the final rounding.
template <class T>
using sum_t = std::conditional_t<sizeof(T) == 2, float, double>;
template <class T>
using sum_vec = vec<sum_t<T>>;
template <class T>
constexpr int kParts = kLanes<T> / kLanes<sum_t<T>>;  // 2 for float, else 1

// Lanes 0 to 3 of a float vector as doubles, or lanes 4 to 7.
template <int part>
OPFORGE_INLINE vec<double> widen_part(vec<float> v) {
#if defined(__AVX__)  // gcc 12 splits the portable form into pairs of lanes
  return _mm256_cvtps_pd(_mm256_extractf128_ps(v, part));
#else
  constexpr int k = 4 * part;
  return __builtin_convertvector(__builtin_shufflevector(v, v, k, k + 1, k + 2, k + 3),
                                 vec<double>);
#endif
}

template <class T>
OPFORGE_INLINE void add_to(sum_vec<T> (&acc)[kParts<T>], vec<T> v) {
  if constexpr (kParts<T> == 1) {
    acc[0] += v;
  } else {
    acc[0] += widen_part<0>(v);
    acc[1] += widen_part<1>(v);
  }
}

template <class T>
OPFORGE_INLINE void add_to(sum_t<T>* sums, vec<T> v) {
  if constexpr (kParts<T> == 1) {
    store(sums, load(sums) + v);
  } else {
    store(sums, load(sums) + widen_part<0>(v));
    store(sums + 4, load(sums + 4) + widen_part<1>(v));
  }
}

constexpr int64_t kBlockTerms = 4096;    // of one sum, along memory
constexpr int64_t kBlockRows = 256;      // of many sums side by side
constexpr int64_t kBlockColumns = 2048;  // partial sums that stay in the L1 cache

template <class C, class V>
OPFORGE_INLINE C sum_lanes(V v) {
  C lanes[sizeof(V) / sizeof(C)];
  store(lanes, v);
  if constexpr (sizeof(C) == 8) return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) +
         ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

// Calls f with the stride, as a constant where it is 1: the compiler makes that loop free of
// choices.
template <class F>
OPFORGE_INLINE void with_stride(int64_t stride, const F& f) {
  if (stride == 1) {
    f(std::integral_constant<int64_t, 1>{});
  } else {
    f(stride);
  }
}

// A sum as an output. For 16-bit outputs a double is a sum of float blocks: one float rounds it.
template <class Out, class Sum>
OPFORGE_INLINE Out round_sum(Sum x) {
  return narrow<Out>(compute_t<Out>(x));
}

// Adds up a row of terms. Two accumulators, each for four vectors at a time: enough additions are
// in flight to hide their latency.
template <class T, class Stride>
OPFORGE_INLINE void add_row(sum_vec<T> (&acc)[2][kParts<T>], const T* p, Stride stride, int64_t n) {
  constexpr int64_t lanes = kLanes<T>;
  const auto at = [&](int64_t i) { return load(p + i * stride, stride); };
  const auto four = [&](int64_t i) {
    return (at(i) + at(i + lanes)) + (at(i + 2 * lanes) + at(i + 3 * lanes));
  };
  int64_t i = 0;
  const bool fours = kParts<T> == 1 || n >= 512;  // a short sum of floats is all done in double
  for (; fours && i + 8 * lanes <= n; i += 8 * lanes) {
    // 2 KB ahead: the hardware by itself stops at the end of every page.
    for (int64_t line = 0; line < 8 * lanes; line += 64 / int64_t(sizeof(T))) {
      __builtin_prefetch(p + (i + line) * stride + 2048 / sizeof(T));
    }
    add_to<T>(acc[0], four(i));
    add_to<T>(acc[1], four(i + 4 * lanes));
  }
  for (; i + lanes <= n; i += lanes) add_to<T>(acc[0], at(i));
  if (i < n) add_to<T>(acc[1], load_some(p + i * stride, stride, n - i));
}

// sums[j] += column j of up to four rows.
template <class T, class Stride>
OPFORGE_INLINE void add_columns(sum_t<T>* sums, const T* const (&row)[4], int rows, Stride stride,
                                int64_t n) {
  constexpr int64_t lanes = kLanes<T>;
  const int64_t whole = n / lanes * lanes;
  const auto at = [&](int r, int64_t j) { return load(row[r] + j * stride, stride); };
  if (rows == 4) {
    for (int64_t j = 0; j < whole; j += lanes) {
      add_to<T>(sums + j, (at(0, j) + at(1, j)) + (at(2, j) + at(3, j)));
    }
  } else {
    for (int r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < whole; j += lanes) add_to<T>(sums + j, at(r, j));
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int64_t j = whole; j < n; ++j) sums[j] += widen(row[r][j * stride]);
  }
}

// Terms that are neighbours in memory: a task is one block of one sum.
// Writes block b of the sum whose output is at `o` to out[b * outputs + o].
template <class In, class Out>
void sum_along(const In* x, const Layout<2>& kept, const Tiles<1>& terms, int64_t group,
               int64_t blocks, Out* out) {
  const int64_t outputs = kept.count(), pieces = terms.outer.count();
  const int64_t grain = std::max<int64_t>(1, kGrain / (terms.tile * group));
  parallel_for(outputs * blocks, grain, [&](int64_t begin, int64_t end) {
    Walk<2> at(kept, begin / blocks);
    for (int64_t block = begin % blocks; begin < end; ++begin) {
      const int64_t first = block * group, last = std::min(first + group, pieces);
      Walk<1> piece(terms.outer, first);
      sum_vec<In> acc[2][kParts<In>] = {};
      with_stride(terms.stride[0], [&](auto stride) {
        for (int64_t i = first; i < last; ++i, piece.next()) {
          add_row(acc, x + at.offset[0] + piece.offset[0], stride, terms.length(piece));
        }
      });
      sum_vec<In> all = acc[0][0] + acc[1][0];
      if constexpr (kParts<In> == 2) all += acc[0][1] + acc[1][1];
      const auto total = sum_lanes<sum_t<In>>(all);
      out[block * outputs + at.offset[1]] = round_sum<Out>(total);
      if (++block == blocks) {
        block = 0;
        at.next();
      }
    }
  });
}

// Outputs that are neighbours in memory: a task is one block of rows, for some columns.
template <class In, class Out>
void sum_across(const In* x, const Tiles<2>& columns, int64_t outputs, const Layout<1>& rows,
                int64_t blocks, Out* out) {
  const int64_t row_count = rows.count(), tiles = columns.outer.count();
  const int64_t per_task = std::min(row_count, kBlockRows) * columns.tile;
  const int64_t grain = std::max<int64_t>(1, kGrain / per_task);
  parallel_for(blocks * tiles, grain, [&](int64_t begin, int64_t end) {
    for (; begin < end; ++begin) {
      const int64_t block = begin / tiles, first = block * kBlockRows;
      const int64_t last = std::min(first + kBlockRows, row_count);
      const Walk<2> at(columns.outer, begin % tiles);
      const int64_t n = columns.length(at);
      sum_t<In> acc[kBlockColumns];
      std::fill_n(acc, n, sum_t<In>(0));
      Walk<1> row(rows, first);
      for (int64_t i = first; i < last;) {
        const In* from[4];
        int count = 0;
        for (; count < 4 && i < last; ++i, row.next()) {
          from[count++] = x + at.offset[0] + row.offset[0];
        }
        with_stride(columns.stride[0],
                    [&](auto stride) { add_columns(acc, from, count, stride, n); });
      }
      Out* to = out + block * outputs + at.offset[1];
      for (int64_t j = 0; j < n; ++j) to[j * columns.stride[1]] = round_sum<Out>(acc[j]);
    }
  });
}

template <class In, class Out>
void sum_rows(const In* x, int64_t rows, int64_t columns, Out* out);

// out[o] = the sum of x over `reduced`, for every o of `kept` (operand 0: x, operand 1: out, which
// is dense). Both layouts have at least one element.
template <class In, class Out>
void sum(const In* x, const Layout<2>& kept, const Layout<1>& reduced, Out* out) {
  const int64_t outputs = kept.count(), count = reduced.count();
  const int64_t kept_step = kept.stride[0][0], reduced_step = reduced.stride[0][0];
  const bool across = kept.rank > 0 && (count < 16 || kept_step == 1 ||
                                        (reduced_step != 1 && kept_step < reduced_step));
  // Short rows, end to end in memory: many together make a row that fills vectors.
  const int64_t fold = ceil_div(256, outputs), wide = fold * outputs, rest = count % fold;
  if (outputs < 64 && kept.rank == 1 && reduced.rank == 1 && kept_step == 1 &&
      kept.stride[1][0] == 1 && reduced_step == outputs && count >= 16 * fold) {
    const auto partial = std::make_unique_for_overwrite<sum_t<In>[]>(size_t(wide + outputs));
    sum_rows(x, count / fold, wide, partial.get());
    if (rest > 0) sum_rows(x + (count - rest) * outputs, rest, outputs, partial.get() + wide);
    return sum_rows<sum_t<In>>(partial.get(), fold + (rest > 0), outputs, out);
  }
  const auto run = [&](int64_t blocks, const auto& level) {
    if (blocks == 1) return level(out);
    const auto partial = std::make_unique_for_overwrite<sum_t<In>[]>(size_t(blocks * outputs));
    level(partial.get());
    sum_rows<sum_t<In>>(partial.get(), blocks, outputs, out);
  };
  if (across) {
    const Tiles<2> columns(kept, kBlockColumns);
    const int64_t blocks = ceil_div(count, kBlockRows);
    run(blocks, [&](auto* to) { sum_across(x, columns, outputs, reduced, blocks, to); });
  } else {
    const Tiles<1> terms(reduced, kBlockTerms);
    const int64_t group = std::max<int64_t>(1, kBlockTerms / terms.tile);
    const int64_t blocks = ceil_div(terms.outer.count(), group);
    run(blocks, [&](auto* to) { sum_along(x, kept, terms, group, blocks, to); });
  }
}

// The sum of the rows of a dense matrix.
template <class In, class Out>
void sum_rows(const In* x, int64_t rows, int64_t columns, Out* out) {
  const Layout<2> kept{columns > 1, {columns}, {{1}, {1}}};
  const Layout<1> reduced{1, {rows}, {{columns}}};
  sum(x, kept, reduced, out);
}

}  // namespace opforge
