// SPDX-License-Identifier: Apache-2.0
// Work is cut into chunks by its shape alone, never by the number of threads: the same bits
// always. The sums of earlier elements are carried in sum_t, which is double for float, and those
// of a block of elements are added up before they join them: one by one, equal terms would be
// rounded to the same side every time.
#include <opforge/cpu/sum.h>
#include <opforge/host/split.h>

namespace opforge {

namespace {

constexpr int64_t kChunk = 65536;  // elements that are worth a task
constexpr int64_t kTasks = 16;     // with so many, nothing is cut further
constexpr int64_t kBlock = 64;     // vectors or rows

// Chunks for `tasks` scans that are `length` rows of `width` elements long.
int64_t rows_of_chunk(int64_t tasks, int64_t length, int64_t width) {
  const int64_t chunk = ceil_div(kChunk, width);
  return tasks >= kTasks || length < 2 * chunk ? length : std::max(chunk, ceil_div(length, 256));
}

OPFORGE_INLINE vec<float> scan_lanes(vec<float> v) {
  const vec<float> zero{};
  v += __builtin_shufflevector(zero, v, 0, 8, 9, 10, 11, 12, 13, 14);
  v += __builtin_shufflevector(zero, v, 0, 0, 8, 9, 10, 11, 12, 13);
  return v + __builtin_shufflevector(zero, v, 0, 0, 0, 0, 8, 9, 10, 11);
}

OPFORGE_INLINE vec<double> scan_lanes(vec<double> v) {
  const vec<double> zero{};
  v += __builtin_shufflevector(zero, v, 0, 4, 5, 6);
  return v + __builtin_shufflevector(zero, v, 0, 0, 4, 5);
}

OPFORGE_INLINE vec<float> reversed(vec<float> v) {
  return __builtin_shufflevector(v, v, 7, 6, 5, 4, 3, 2, 1, 0);
}

OPFORGE_INLINE vec<double> reversed(vec<double> v) {
  return __builtin_shufflevector(v, v, 3, 2, 1, 0);
}

// y = the running sums of x, from the last element on if kReverse.
template <bool kReverse, class T>
void scan_row(const T* x, int64_t n, sum_t<T> carry, T* y) {
  using C = compute_t<T>;
  constexpr int64_t lanes = kLanes<T>;
  const int64_t whole = n / lanes * lanes;
  for (int64_t i = 0; i < whole;) {
    sum_t<T> block = 0;
    for (const int64_t end = std::min(whole, i + kBlock * lanes); i < end; i += lanes) {
      const int64_t at = kReverse ? n - lanes - i : i;
      const vec<T> in = load(x + at), sums = scan_lanes(kReverse ? reversed(in) : in);
      const vec<T> out = C(carry + block) + sums;
      store(y + at, kReverse ? reversed(out) : out);
      block += sums[lanes - 1];
    }
    carry += block;
  }
  for (int64_t i = whole; i < n; ++i) {
    const int64_t at = kReverse ? n - 1 - i : i;
    carry += widen(x[at]);
    y[at] = narrow<T>(C(carry));
  }
}

// Rows of x, adjacent elements; `start` is the first one's y.
template <class T>
void cumsum_rows(const T* x, int64_t stride, int64_t rows, int64_t n, bool reverse, T* start,
                 int64_t y_stride) {
  const int64_t chunk = rows_of_chunk(rows, n, 1), chunks = ceil_div(n, chunk);
  // Chunks count in the order of the scan.
  const auto first = [&](int64_t c) {
    return reverse ? std::max<int64_t>(n - (c + 1) * chunk, 0) : c * chunk;
  };
  const auto length = [&](int64_t c) { return std::min(chunk, n - c * chunk); };
  const auto sums = std::make_unique<sum_t<T>[]>(size_t(rows * chunks));
  const int64_t grain = std::max<int64_t>(1, kGrain / chunk);
  if (chunks > 1) {
    parallel_for(rows * chunks, grain, [&](int64_t i, int64_t end) {
      for (; i < end; ++i) {
        sum_vec<T> acc[2][kParts<T>] = {};
        add_row(acc, x + i / chunks * stride + first(i % chunks),
                std::integral_constant<int64_t, 1>{}, length(i % chunks));
        sum_vec<T> all = acc[0][0] + acc[1][0];
        if constexpr (kParts<T> == 2) all += acc[0][1] + acc[1][1];
        sums[i] = sum_lanes<sum_t<T>>(all);
      }
    });
    for (int64_t row = 0; row < rows; ++row) {
      sum_t<T> before = 0;
      for (int64_t c = 0; c < chunks; ++c) {
        before += std::exchange(sums[row * chunks + c], before);
      }
    }
  }
  parallel_for(rows * chunks, grain, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      const int64_t row = i / chunks, at = first(i % chunks), count = length(i % chunks);
      (reverse ? scan_row<true, T> : scan_row<false, T>)(x + row * stride + at, count, sums[i],
                                                         start + row * y_stride + at);
    }
  });
}

// Adds a row to the sums of its block and writes them with those before it, rounded.
template <class T>
OPFORGE_INLINE void add_and_write(const T* x, int64_t n, const sum_t<T>* before, sum_t<T>* block,
                                  T* y) {
  int64_t j = 0;
  if constexpr (kParts<T> == 1) {
    for (; j + kLanes<T> <= n; j += kLanes<T>) {
      const vec<T> sum = load(block + j) + load(x + j);
      store(block + j, sum);
      store(y + j, load(before + j) + sum);
    }
  }
  for (; j < n; ++j) {
    block[j] += widen(x[j]);
    y[j] = narrow<T>(compute_t<T>(before[j] + block[j]));
  }
}

// The sums go from row to row of matrices whose columns are adjacent.
template <class T>
void cumsum_columns(const SplitView& s, int64_t rows, bool reverse, const T* x, T* y) {
  constexpr int64_t kWidth = kBlockColumns / 2;
  const int64_t width = std::min(s.inner, kWidth), tiles = ceil_div(s.inner, width);
  const int64_t chunk = rows_of_chunk(s.outer * tiles, rows, width);
  const int64_t chunks = ceil_div(rows, chunk);
  const int64_t grain = std::max<int64_t>(1, kGrain / (chunk * width));
  const auto sums = std::make_unique<sum_t<T>[]>(size_t(s.outer * chunks * s.inner));
  // Calls visit(row of x, row of y, columns, sums before the block, in it) for all rows of chunks.
  const auto over_rows = [&](const auto& visit) {
    parallel_for(s.outer * chunks * tiles, grain, [&](int64_t i, int64_t end) {
      for (; i < end; ++i) {
        const int64_t col = i % tiles * width, n = std::min(width, s.inner - col);
        const int64_t c = i / tiles % chunks, outer = i / tiles / chunks;
        sum_t<T>* const own = sums.get() + (outer * chunks + c) * s.inner + col;
        const T* const from = x + outer * s.outer_stride + col;
        T* const to = y + outer * s.length * s.inner + col;
        for (int64_t r = c * chunk, last = std::min(rows, r + chunk); r < last;) {
          sum_t<T> block[kWidth] = {};
          for (const int64_t stop = std::min(last, r + kBlock); r < stop; ++r) {
            const int64_t row = reverse ? rows - 1 - r : r;
            visit(from + row * s.length_stride, to + row * s.inner, n, own, block);
          }
          for (int64_t j = 0; j < n; ++j) own[j] += block[j];
        }
      }
    });
  };
  if (chunks > 1) {
    over_rows([](const T* from, T*, int64_t n, const sum_t<T>*, sum_t<T>* block) {
      for (int64_t j = 0; j < n; ++j) block[j] += widen(from[j]);
    });
    for (int64_t outer = 0; outer < s.outer; ++outer) {
      sum_t<T>* const first = sums.get() + outer * chunks * s.inner;
      for (int64_t j = 0; j < s.inner; ++j) {
        sum_t<T> before = 0;
        for (int64_t c = 0; c < chunks; ++c)
          before += std::exchange(first[c * s.inner + j], before);
      }
    }
  }
  over_rows([](const T* from, T* to, int64_t n, const sum_t<T>* before, sum_t<T>* block) {
    add_and_write(from, n, before, block, to);
  });
}

}  // namespace

Tensor cumsum_cpu(const Tensor& x, int64_t dim, bool exclusive, bool reverse) {
  const int64_t rank = std::max<int64_t>(x.dim(), 1);
  OPFORGE_CHECK(dim >= -rank && dim < rank, "cumsum: dim ", dim, " is out of range");
  const Tensor y = empty(sizes(x), x);
  if (x.numel() == 0) return y;
  const SplitView s = split_at(x, dim < 0 ? dim + rank : dim);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    const T* from = data<T>(s.tensor);
    T* to = mutable_data<T>(y);
    prefer_huge_pages(to, y.numel() * int64_t(sizeof(T)));
    const int64_t y_stride = s.length * s.inner;
    int64_t rows = s.length;
    if (exclusive) {
      // The inclusive sums of all but the last, each written where the next one's place is.
      --rows;
      const int64_t zero = reverse ? rows * s.inner : 0;
      for (int64_t o = 0; o < s.outer; ++o) {
        std::fill_n(to + o * y_stride + zero, s.inner, narrow<T>(0.0f));
      }
      if (rows == 0) return;
      if (reverse) {
        from += s.inner == 1 ? 1 : s.length_stride;
      } else {
        to += s.inner;
      }
    }
    if (s.inner == 1) {
      cumsum_rows(from, s.outer_stride, s.outer, rows, reverse, to, y_stride);
    } else {
      cumsum_columns(s, rows, reverse, from, to);
    }
  });
  return y;
}

OPFORGE_IMPL(cumsum, cumsum_cpu)

}  // namespace opforge
