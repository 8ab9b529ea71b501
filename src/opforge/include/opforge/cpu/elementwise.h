// SPDX-License-Identifier: Apache-2.0
// out = f(in...) on the CPU for any strides, on torch's threads. Includes no torch header: who uses
// it includes <opforge/host.h> for parallel_for.
#pragma once

#include <opforge/core/layout.h>
#include <opforge/cpu/vec.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace opforge {

template <class F>
void parallel_for(int64_t n, int64_t grain, const F& body);

// Waking another thread costs as much as some ten thousand elements of arithmetic.
constexpr int64_t kGrain = 32768;

// From here on the C library gives every allocation back to the system when it is freed.
constexpr int64_t kHugePageBytes = int64_t(32) << 20;

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
    outer.size[0] = ceil_div(row, tile);
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

// f(v...) or, where f is for the elements of one row, f(i, v...) with the number of the first.
template <class F, class... V>
OPFORGE_INLINE auto apply(const F& f, int64_t i, V... v) {
  if constexpr (requires { f(i, v...); }) {
    return f(i, v...);
  } else {
    return f(v...);
  }
}

template <class T, int N, class F, size_t... I>
OPFORGE_INLINE void elementwise_row(T* out, const T* const (&in)[N], const int64_t (&stride)[N],
                                    int64_t n, const F& f, std::index_sequence<I...>) {
  constexpr int64_t lanes = kLanes<T>;
  int64_t i = 0;
  if (((stride[I] == 1) && ...)) {
#pragma GCC unroll 4
    for (; i + lanes <= n; i += lanes) store(out + i, apply(f, i, load(in[I] + i)...));
  } else {
    for (; i + lanes <= n; i += lanes) {
      store(out + i, apply(f, i, load(in[I] + i * stride[I], stride[I])...));
    }
  }
  if (i < n) {
    store_some(out + i, 1, n - i,
               apply(f, i, load_some(in[I] + i * stride[I], stride[I], n - i)...));
  }
}

constexpr int64_t kRowElements = 4096;

namespace detail {

template <class F, class V, size_t... K>
constexpr bool takes_vectors(std::index_sequence<K...>) {
  return requires(const F& f, V v) {
    { f((void(K), v)...) } -> std::convertible_to<V>;
  } || requires(const F& f, V v, int64_t i) {
    { f(i, (void(K), v)...) } -> std::convertible_to<V>;
  };
}

template <class F>
using RowOf = decltype(std::declval<const F&>().row(int64_t(), int64_t()));

}  // namespace detail

// A function of a vector of each input: [](auto a, auto b) { return a + b; }. One that has to know
// which elements it gets has row(first, n), called for up to kRowElements neighbours in memory;
// what that returns is called with the number within them, 0 to n - 1, before the vectors:
//
//   struct FirstOfRow {
//     auto row(int64_t first, int64_t) const {
//       return [first](int64_t i, vec<float> v) { return v + float(first + i); };
//     }
//   };
template <class F, class T, int N>
concept VectorFunction =
    detail::takes_vectors<F, vec<T>>(std::make_index_sequence<N>{}) ||
    detail::takes_vectors<detail::RowOf<F>, vec<T>>(std::make_index_sequence<N>{});

// out = f(in...), vector by vector. Operand 0 of the layout is the output: new and dense, so that
// dimension 0 has stride 1 there.
template <class T, int N, class F>
  requires VectorFunction<F, T, N>
void elementwise(const Layout<N + 1>& layout, T* out, const T* const (&in)[N], const F& f) {
  const int64_t count = layout.count();
  if (count == 0) return;
  prefer_huge_pages(out, count * int64_t(sizeof(T)));
  bool strided = false;
  for (int k = 1; k <= N && layout.rank > 1; ++k) strided |= layout.stride[k][0] > 1;
  Tiles<N + 1> tiles(layout, strided ? 32 : kRowElements);
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
      const int64_t n = tiles.length(at);
      T* const to = out + at.offset[0];
      if constexpr (requires { f.row(at.offset[0], n); }) {
        elementwise_row(to, from, stride, n, f.row(at.offset[0], n), std::make_index_sequence<N>{});
      } else {
        elementwise_row(to, from, stride, n, f, std::make_index_sequence<N>{});
      }
    }
  });
}

}  // namespace opforge
