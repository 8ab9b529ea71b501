// SPDX-License-Identifier: Apache-2.0
// Building blocks for CPU kernels: vectors, a strided elementwise loop and a deterministic sum.
// Includes no torch header; whoever uses the loops includes <opforge/host.h> for parallel_for.
#pragma once

#include <opforge/layout.h>
#include <opforge/types.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__AVX__)
#include <immintrin.h>
#endif

// Vectors only ever pass between functions that are inlined, so their calling convention, which
// gcc remarks on where there is no AVX, is of no concern.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"
#endif
#define OPFORGE_INLINE inline __attribute__((always_inline))

namespace opforge {

template <class F>
void parallel_for(int64_t n, int64_t grain, const F& body);

// Waking another thread costs as much as some ten thousand elements of arithmetic.
constexpr int64_t kGrain = 32768;

// From here on the C library gives every allocation back to the system when it is freed.
constexpr int64_t kHugePageBytes = int64_t(32) << 20;

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// --- vectors ------------------------------------------------------------------------------------

// 32 bytes of the compute type: a register with AVX, two with SSE or NEON. The compiler's own
// vectors have the operators +, *, <, ?: lane by lane, and need no instruction set by name.
template <class C>
struct VectorOf {
  typedef C type __attribute__((vector_size(32)));
};
template <class T>
using vec = typename VectorOf<compute_t<T>>::type;
template <class T>
constexpr int64_t kLanes = 32 / sizeof(compute_t<T>);

using Bits = VectorOf<uint32_t>::type;
typedef uint16_t HalfBits __attribute__((vector_size(16)));

OPFORGE_INLINE vec<float> load(const float* p) {
  vec<float> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

OPFORGE_INLINE vec<double> load(const double* p) {
  vec<double> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

OPFORGE_INLINE vec<bfloat16> load(const bfloat16* p) {
  HalfBits raw;
  std::memcpy(&raw, p, sizeof raw);
#if defined(__AVX2__)  // what __builtin_convertvector means, but gcc 12 makes it four instructions
  const Bits wide = Bits(_mm256_cvtepu16_epi32(__m128i(raw)));
#else
  const Bits wide = __builtin_convertvector(raw, Bits);
#endif
  return std::bit_cast<vec<float>>(wide << 16);
}

OPFORGE_INLINE vec<half> load(const half* p) {
#if defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  vec<half> v;
  for (int i = 0; i < 8; ++i) v[i] = widen(p[i]);
  return v;
#endif
}

OPFORGE_INLINE void store(float* p, vec<float> v) { std::memcpy(p, &v, sizeof v); }

OPFORGE_INLINE void store(double* p, vec<double> v) { std::memcpy(p, &v, sizeof v); }

OPFORGE_INLINE void store(bfloat16* p, vec<bfloat16> v) {
  const Bits bits = std::bit_cast<Bits>(v);
  const Bits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;  // as narrow<bfloat16>
  const Bits quiet_nan = Bits{} + 0x7fc0u;
  const HalfBits raw = __builtin_convertvector(v != v ? quiet_nan : rounded, HalfBits);
  std::memcpy(p, &raw, sizeof raw);
}

OPFORGE_INLINE void store(half* p, vec<half> v) {
#if defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < 8; ++i) p[i] = narrow<half>(v[i]);
#endif
}

// n lanes, `stride` elements apart; the lanes after them are 0.
template <class T>
OPFORGE_INLINE vec<T> load_some(const T* p, int64_t stride, int64_t n) {
  compute_t<T> lanes[kLanes<T>] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = widen(p[i * stride]);
  return load(lanes);
}

template <class T>
OPFORGE_INLINE vec<T> load(const T* p, int64_t stride) {
  if (stride == 1) return load(p);
  if (stride == 0) return vec<T>{} + widen(*p);
  vec<T> v;
  for (int i = 0; i < kLanes<T>; ++i) v[i] = widen(p[i * stride]);
  return v;
}

template <class T>
OPFORGE_INLINE void store_some(T* p, int64_t stride, int64_t n, vec<T> v) {
  compute_t<T> lanes[kLanes<T>];
  store(lanes, v);
  for (int64_t i = 0; i < n; ++i) p[i * stride] = narrow<T>(lanes[i]);
}

// a * b + c, rounded once where the CPU can. (Elsewhere an exact fma would be a slow library call.)
OPFORGE_INLINE vec<float> fma(vec<float> a, vec<float> b, vec<float> c) {
#if defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

OPFORGE_INLINE vec<double> fma(vec<double> a, vec<double> b, vec<double> c) {
#if defined(__FMA__)
  return _mm256_fmadd_pd(a, b, c);
#else
  return a * b + c;
#endif
}

// Keeps NaN and -0.0.
template <class V>
OPFORGE_INLINE V rectify(V v) {
  return v < 0 ? V{} : v;
}

// The gradient of rectify, told by its result: NaN lets the gradient pass.
template <class V>
OPFORGE_INLINE V rectify_gradient(V grad, V y) {
  return y <= 0 ? V{} : grad;
}

// Asks for 2 MB pages behind a large new output: torch gets it from the system afresh, which maps
// it page by page as it is first written, and with 4 KB pages that takes longer than everything
// else.
inline void prefer_huge_pages([[maybe_unused]] void* p, [[maybe_unused]] int64_t bytes) {
#if defined(__linux__)
  constexpr uintptr_t page = 4096;
  if (bytes < kHugePageBytes) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(p) + page - 1) & ~(page - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(p) + uintptr_t(bytes)) & ~(page - 1);
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // only advice: may fail
#endif
}

// --- strided loops ------------------------------------------------------------------------------

// Steps through a layout, dimension 0 fastest, and knows each operand's offset.
template <int N>
struct Walk {
  const Layout<N>& layout;
  int64_t index[kMaxRank] = {};
  int64_t offset[N] = {};

  Walk(const Layout<N>& layout, int64_t start) : layout(layout) {
    for (int d = 0; d < layout.rank && start > 0; ++d) {
      index[d] = start % layout.size[d];
      start /= layout.size[d];
      for (int k = 0; k < N; ++k) offset[k] += index[d] * layout.stride[k][d];
    }
  }

  void next() {
    for (int d = 0; d < layout.rank; ++d) {
      for (int k = 0; k < N; ++k) offset[k] += layout.stride[k][d];
      if (++index[d] < layout.size[d]) return;
      for (int k = 0; k < N; ++k) offset[k] -= layout.size[d] * layout.stride[k][d];
      index[d] = 0;
    }
  }
};

// Dimension 0 cut into tiles: walk the result to visit the tiles, each of them a short row.
template <int N>
struct Tiles {
  Layout<N> outer;
  int64_t row, tile;  // lengths
  int64_t stride[N];  // inside a tile
  int dim = 0;        // the dimension of `outer` that counts tiles

  Tiles(const Layout<N>& layout, int64_t longest) : outer(layout) {
    if (outer.rank == 0) {  // one element
      outer.rank = 1;
      outer.size[0] = 1;
    }
    row = outer.size[0];
    tile = std::min(row, longest);
    outer.size[0] = divide_up(row, tile);
    for (int k = 0; k < N; ++k) {
      stride[k] = layout.stride[k][0];
      outer.stride[k][0] = stride[k] * tile;
    }
  }

  int64_t length(const Walk<N>& at) const { return std::min(tile, row - at.index[dim] * tile); }

  void swap(int a, int b) {
    std::swap(outer.size[a], outer.size[b]);
    for (int k = 0; k < N; ++k) std::swap(outer.stride[k][a], outer.stride[k][b]);
  }
};

template <class T, int N, class F, size_t... I>
OPFORGE_INLINE void elementwise_row(T* out, const T* const (&in)[N], const int64_t (&stride)[N],
                                    int64_t n, const F& f, std::index_sequence<I...>) {
  constexpr int64_t lanes = kLanes<T>;
  int64_t i = 0;
  if (((stride[I] == 1) && ...)) {
#pragma GCC unroll 4
    for (; i + lanes <= n; i += lanes) store(out + i, f(load(in[I] + i)...));
  } else {
    for (; i + lanes <= n; i += lanes) {
      store(out + i, f(load(in[I] + i * stride[I], stride[I])...));
    }
  }
  if (i < n) {
    store_some(out + i, 1, n - i, f(load_some(in[I] + i * stride[I], stride[I], n - i)...));
  }
}

// out = f(in...), vector by vector. Operand 0 of the layout is the output: new and dense, so that
// dimension 0 has stride 1 there.
template <class T, int N, class F>
void elementwise(const Layout<N + 1>& layout, T* out, const T* const (&in)[N], const F& f) {
  const int64_t count = layout.count();
  if (count == 0) return;
  prefer_huge_pages(out, count * int64_t(sizeof(T)));
  bool strided = false;
  for (int k = 1; k <= N && layout.rank > 1; ++k) strided |= layout.stride[k][0] > 1;
  Tiles<N + 1> tiles(layout, strided ? 32 : 4096);
  if (strided) {
    // An input is transposed. Going down its short stride next, over short rows, uses all of each
    // of its cache lines while they are there; going along whole rows would fetch them many times.
    int best = 1;
    const auto jump = [&](int d) {
      int64_t sum = 0;
      for (int k = 1; k <= N; ++k) sum += layout.stride[k][0] > 1 ? layout.stride[k][d] : 0;
      return sum;
    };
    for (int d = 2; d < layout.rank; ++d) best = jump(d) < jump(best) ? d : best;
    tiles.swap(0, best);
    tiles.swap(best, layout.rank - 1);
    tiles.dim = layout.rank - 1;
  }
  const int64_t grain = std::max<int64_t>(1, kGrain / tiles.tile);
  parallel_for(tiles.outer.count(), grain, [&](int64_t begin, int64_t end) {
    Walk<N + 1> at(tiles.outer, begin);
    int64_t stride[N];
    for (int k = 0; k < N; ++k) stride[k] = tiles.stride[k + 1];
    for (; begin < end; ++begin, at.next()) {
      const T* from[N];
      for (int k = 0; k < N; ++k) from[k] = in[k] + at.offset[k + 1];
      elementwise_row(out + at.offset[0], from, stride, tiles.length(at), f,
                      std::make_index_sequence<N>{});
    }
  });
}

// --- sums ---------------------------------------------------------------------------------------

// Every sum below is cut into blocks by its shape alone, never by the number of threads, and the
// blocks are summed in turn by the same rules: the same bits every time. 16-bit numbers are summed
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

// Terms that lie along memory: a task is one block of one sum.
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

// Outputs that lie along memory: a task is one block of rows, for some columns.
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
  const int64_t fold = divide_up(256, outputs), wide = fold * outputs, rest = count % fold;
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
    const int64_t blocks = divide_up(count, kBlockRows);
    run(blocks, [&](auto* to) { sum_across(x, columns, outputs, reduced, blocks, to); });
  } else {
    const Tiles<1> terms(reduced, kBlockTerms);
    const int64_t group = std::max<int64_t>(1, kBlockTerms / terms.tile);
    const int64_t blocks = divide_up(terms.outer.count(), group);
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
