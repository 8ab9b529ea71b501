// SPDX-License-Identifier: Apache-2.0
// softmax and log_softmax of v = x * scale + mask over rows on the CPU, and their gradients.
// Includes no torch header.
#pragma once

#include <opforge/cpu/math.h>
#include <opforge/cpu/row_sums.h>

#include <cmath>
#include <limits>

namespace opforge {

// The largest element, NaN aside.
template <class T>
inline compute_t<T> largest(const T* v, int64_t n) {
  using A = compute_t<T>;
  constexpr A lowest = -std::numeric_limits<A>::infinity();
  vec<T> top[4];
  for (vec<T>& one : top) one = lowest - vec<T>{};
  const int64_t whole = n / kLanes<T> * kLanes<T>;
  visit_vectors<T>(0, whole, [&](int k, int64_t j, auto lanes) {
    const vec<T> one = load_lanes(v + j, lanes);
    top[k] = one > top[k] ? one : top[k];
  });
  for (int k = 1; k < 4; ++k) top[0] = top[k] > top[0] ? top[k] : top[0];
  A lanes[kLanes<T>], best = lowest;
  store(lanes, top[0]);
  for (const A one : lanes) best = one > best ? one : best;
  for (int64_t j = whole; j < n; ++j) best = widen(v[j]) > best ? widen(v[j]) : best;
  return best;
}

// The result for hidden elements, and for a row that is -inf throughout.
template <bool Log, class T>
inline void fill_hidden(T* out, int64_t n) {
  using A = compute_t<T>;
  std::fill_n(out, n, narrow<T>(Log ? -std::numeric_limits<A>::infinity() : A(0)));
}

// out = softmax(v), or its logarithm, of n elements. `line` has room for as many; it may be out, or
// v. Where covered is false, a row of -inf becomes NaN.
template <bool Log, class T, class In>
void softmax_row(const In* v, int64_t n, bool covered, T* out, compute_t<T>* line) {
  using A = compute_t<T>;
  A top = largest(v, n);
  if (top == -std::numeric_limits<A>::infinity()) top = 0;
  const double sum = sum_of_terms<T>(n, [&](int64_t j, auto lanes) {
    const vec<T> power = exp_below(load_lanes(v + j, lanes) - top);
    if constexpr (!Log) store_lanes(line + j, lanes, power);
    return power;
  });
  if (covered && sum == 0) return fill_hidden<Log>(out, n);
  const A last = A(Log ? std::log(sum) : 1 / sum);
  visit_vectors<T>(0, n, [&](int, int64_t j, auto lanes) {
    if constexpr (Log) {
      store_lanes(out + j, lanes, (load_lanes(v + j, lanes) - top) - last);
    } else {
      store_lanes(out + j, lanes, load_lanes(line + j, lanes) * last);
    }
  });
}

// How many columns of a row are visible, if the last two dims are queries and keys.
struct Causal {
  int64_t queries = 0;  // 0: all of them

  int64_t visible(int64_t row, int64_t keys) const {
    return queries == 0 ? keys : std::max<int64_t>(0, row % queries + 1 + keys - queries);
  }
};

// What is added to x, stretched to its rows, in the type of x or that of computations; null:
// nothing.
template <class M>
struct Mask {
  Rows<M> rows;
  int64_t step = 1;  // from column to column
};

template <class M, class Step>
OPFORGE_INLINE vec<M> load_lanes(const M* p, Step step, AllLanes<M>) {
  return load(p, int64_t(step));
}
template <class M, class Step>
OPFORGE_INLINE vec<M> load_lanes(const M* p, Step step, int64_t n) {
  return load_some(p, step, n);
}

template <bool Log, class T, class M>
void softmax_rows(int64_t rows, int64_t cols, const Rows<T>& x, const Mask<M>& mask,
                  compute_t<T> scale, Causal causal, T* y) {
  using A = compute_t<T>;
  constexpr bool in_place = std::is_same_v<T, A>;
  const bool masked = mask.rows.data != nullptr;
  prefer_huge_pages(y, rows * cols * int64_t(sizeof(T)));
  parallel_for(rows, std::max<int64_t>(1, kGrain / cols), [&](int64_t row, int64_t end) {
    const auto room = std::make_unique_for_overwrite<A[]>(in_place ? 0 : size_t(cols));
    RowsFrom<T> from(x, row);
    RowsFrom<M> added(mask.rows, row);
    for (; row < end; ++row, from.next(), added.next()) {
      T* const out = y + row * cols;
      A* line = room.get();
      if constexpr (in_place) line = out;
      const int64_t n = causal.visible(row, cols);
      const T* const values = from.row();
      if (masked) {
        with_stride(mask.step, [&](auto step) {
          visit_vectors<T>(0, n, [&](int, int64_t j, auto lanes) {
            store_lanes(line + j, lanes,
                        fma(load_lanes(values + j, lanes), scale - vec<T>{},
                            load_lanes(added.row() + j * step, step, lanes)));
          });
        });
        softmax_row<Log>(line, n, true, out, line);
      } else if (scale != 1) {
        visit_vectors<T>(0, n, [&](int, int64_t j, auto lanes) {
          store_lanes(line + j, lanes, load_lanes(values + j, lanes) * scale);
        });
        softmax_row<Log>(line, n, causal.queries > 0, out, line);
      } else {
        softmax_row<Log>(values, n, causal.queries > 0, out, line);
      }
      fill_hidden<Log>(out + n, cols - n);
    }
  });
}

template <bool Log, class T>
void softmax_gradient_rows(int64_t rows, int64_t cols, const Rows<T>& grad_y, const Rows<T>& y,
                           compute_t<T> scale, Causal causal, T* grad_x) {
  using A = compute_t<T>;
  using V = vec<T>;
  prefer_huge_pages(grad_x, rows * cols * int64_t(sizeof(T)));
  parallel_for(rows, std::max<int64_t>(1, kGrain / cols), [&](int64_t row, int64_t end) {
    RowsFrom<T> grads(grad_y, row), values(y, row);
    for (; row < end; ++row, grads.next(), values.next()) {
      const T *const grad = grads.row(), *const value = values.row();
      T* const out = grad_x + row * cols;
      const int64_t n = causal.visible(row, cols);
      const A sum = A(sum_of_terms<T>(n, [&](int64_t j, auto lanes) {
        const V g = load_lanes(grad + j, lanes);
        return Log ? g : g * load_lanes(value + j, lanes);
      }));
      visit_vectors<T>(0, n, [&](int, int64_t j, auto lanes) {
        const V g = load_lanes(grad + j, lanes), v = load_lanes(value + j, lanes);
        if constexpr (Log) {
          store_lanes(out + j, lanes, fma(exp_below(v), -sum - V{}, g) * scale);
        } else {
          store_lanes(out + j, lanes, v * scale * (g - sum));
        }
      });
      std::fill_n(out + n, cols - n, narrow<T>(A(0)));
    }
  });
}

}  // namespace opforge
