// SPDX-License-Identifier: Apache-2.0
// layer_norm (Centered) and rms_norm on the CPU, with a prologue (a relu, a dropout and an added
// residual) and an epilogue (a relu and a dropout). Includes no torch header.
//
//   h = prologue(x) + residual      y = epilogue(normed(h) · weight + bias)
#pragma once

#include <opforge/cpu/rng.h>
#include <opforge/cpu/rows.h>
#include <opforge/cpu/sum.h>

#include <cmath>

namespace opforge {

// A prologue or an epilogue: a relu, a dropout or both, in this order. What is dropped follows from
// the seed and the element's number.
template <class T>
struct ReluDropout {
  using V = vec<T>;
  static constexpr int64_t kPiece = 512;  // columns whose random numbers are at hand
  bool relu = false, dropout = false;
  uint64_t seed = 0;
  uint32_t threshold = 0;
  compute_t<T> factor = 1;  // of what is kept

  explicit operator bool() const { return relu || dropout; }

  // Calls visit(j, lanes, halves) for every vector of a row whose first element has number `first`;
  // the halves are the random numbers that forward and backward want for columns j and on.
  template <class Visit>
  OPFORGE_INLINE void visit_row(int64_t first, int64_t cols, const Visit& visit) const {
    RandomHalves<kPiece> random;
    for (int64_t begin = 0, end; begin < cols; begin = end) {
      end = dropout ? std::min(begin + kPiece, cols) : cols;
      const uint16_t* halves = nullptr;
      if (dropout) halves = random.draw(seed, uint64_t(first + begin), end - begin);
      int64_t j = begin;
      for (; j + kLanes<T> <= end; j += kLanes<T>) {
        visit(j, AllLanes<T>{}, halves);
        if (dropout) halves += kLanes<T>;
      }
      if (j < end) visit(j, end - j, halves);
    }
  }

  OPFORGE_INLINE V forward(V v, const uint16_t* halves) const {
    if (relu) v = rectify(v);
    return dropout ? where_kept(halves, threshold, v * factor) : v;
  }
  // The gradient of the input, given that of the output and the input.
  OPFORGE_INLINE V backward(V grad, V input, const uint16_t* halves) const {
    if (dropout) grad = where_kept(halves, threshold, grad * factor);
    return relu ? rectify_gradient(grad, input) : grad;
  }
};

// A sum over a row is made of blocks, which are added up in double.
template <class T>
inline double row_sum(const T* v, int64_t n) {
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlockTerms) {
    sum_vec<T> acc[2][kParts<T>] = {};
    add_row(acc, v + begin, std::integral_constant<int64_t, 1>{}, std::min(kBlockTerms, n - begin));
    sum_vec<T> all = acc[0][0] + acc[1][0];
    if constexpr (kParts<T> == 2) all += acc[0][1] + acc[1][1];
    total += double(sum_lanes<sum_t<T>>(all));
  }
  if (!std::isfinite(total)) {  // numbers close to the largest: their sum fits a double
    total = 0;
    for (int64_t j = 0; j < n; ++j) total += double(widen(v[j]));
  }
  return total;
}

template <class T>
inline double squares_from(const T* v, int64_t n, compute_t<T> center) {
  constexpr int64_t lanes = kLanes<T>;
  double total = 0;
  const auto add = [center](vec<T>& acc, const T* p) {
    const vec<T> away = load(p) - center;
    acc = fma(away, away, acc);
  };
  for (int64_t begin = 0; begin < n; begin += kBlockTerms) {
    const int64_t end = std::min(begin + kBlockTerms, n);
    vec<T> acc[4] = {};
    int64_t j = begin;
    for (; j + 4 * lanes <= end; j += 4 * lanes) {
      for (int k = 0; k < 4; ++k) add(acc[k], v + j + k * lanes);
    }
    for (; j + lanes <= end; j += lanes) add(acc[0], v + j);
    total += double(sum_lanes<compute_t<T>>((acc[0] + acc[1]) + (acc[2] + acc[3])));
    for (; j < end; ++j) {
      const double away = double(widen(v[j]) - center);
      total += away * away;
    }
  }
  return total;
}

// Mean and 1 / standard deviation of a row.
template <class T>
struct Scale {
  using A = compute_t<T>;
  A mean = 0, rstd;

  OPFORGE_INLINE vec<T> normed(const T* p, AllLanes<T>) const { return (load(p) - mean) * rstd; }
  // Lanes past the end are 0 here, too: products with them do not spoil a sum.
  OPFORGE_INLINE vec<T> normed(const T* p, int64_t n) const {
    A lanes[kLanes<T>] = {};
    for (int64_t i = 0; i < n; ++i) lanes[i] = (widen(p[i]) - mean) * rstd;
    return load(lanes);
  }
};

template <bool Centered, class T>
inline Scale<T> scale_of(const T* v, int64_t n, double eps) {
  Scale<T> scale;
  const double count = double(std::max<int64_t>(n, 1));
  double mean = 0;
  if constexpr (Centered) {
    mean = row_sum(v, n) / count;
    scale.mean = compute_t<T>(mean);
  }
  // The deviations are from the rounded mean, so the square of its error is subtracted.
  const double off = mean - double(scale.mean);
  const double variance = squares_from(v, n, scale.mean) / count - off * off;
  scale.rstd = compute_t<T>(1 / std::sqrt(std::max(variance, 0.0) + eps));
  return scale;
}

// The options of a norm, and its parameters: a value per column, or null.
template <class T>
struct Norm {
  using A = compute_t<T>;
  using V = vec<T>;
  int64_t rows, cols;
  ReluDropout<T> prologue, epilogue;
  const A *weight = nullptr, *bias = nullptr;
  A offset, no_bias;  // no_bias is added in place of a bias
  double eps;

  int64_t bytes() const { return rows * cols * int64_t(sizeof(T)); }

  template <class Lanes>
  OPFORGE_INLINE V factor(int64_t col, Lanes n) const {
    return weight == nullptr ? A(1) - V{} : load_lanes(weight + col, n) + offset;
  }
  template <class Lanes>
  OPFORGE_INLINE V result(V normed, V factor, int64_t col, Lanes n) const {
    return fma(normed, factor, bias == nullptr ? no_bias - V{} : load_lanes(bias + col, n));
  }

  // h = prologue(x) + residual, rounded.
  void make_h(const T* x, const T* residual, int64_t row, T* h) const {
    prologue.visit_row(row * cols, cols, [&](int64_t j, auto n, const uint16_t* halves) {
      V v = prologue.forward(load_lanes(x + j, n), halves);
      if (residual != nullptr) v += load_lanes(residual + j, n);
      store_lanes(h + j, n, v);
    });
  }
};

// y, the statistics unless they are null, and h if there is a residual.
template <bool Centered, class T>
void normalise_rows(const Norm<T>& norm, const Rows<T>& x, const Rows<T>& residual, T* y, T* h,
                    compute_t<T>* mean, compute_t<T>* rstd) {
  const int64_t cols = norm.cols, grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, cols));
  const bool large = should_stream(y, norm.rows, cols);
  prefer_huge_pages(y, norm.bytes());
  if (residual.data != nullptr) prefer_huge_pages(h, norm.bytes());
  parallel_for(norm.rows, grain, [&](int64_t row, int64_t end) {
    RowsFrom<T> from(x, row), added(residual, row);
    for (; row < end; ++row, added.next()) {
      T* const out = y + row * cols;
      const T* values = from.row();
      from.next();
      const T* const next = from.row();
      if (norm.prologue || residual.data != nullptr) {
        T* const room = residual.data != nullptr ? h + row * cols : out;  // y is written last
        norm.make_h(values, residual.data != nullptr ? added.row() : nullptr, row, room);
        values = room;
      }
      const Scale<T> scale = scale_of<Centered>(values, cols, norm.eps);
      if (mean != nullptr) mean[row] = scale.mean;
      if (rstd != nullptr) rstd[row] = scale.rstd;
      const bool streams = large && values != out;
      norm.epilogue.visit_row(row * cols, cols, [&](int64_t j, auto n, const uint16_t* halves) {
        __builtin_prefetch(next + j);  // memory is idle while a row is worked on
        const vec<T> normed = scale.normed(values + j, n);
        const vec<T> v = norm.result(normed, norm.factor(j, n), j, n);
        stream_lanes(streams, out + j, n, norm.epilogue.forward(v, halves));
      });
    }
    finish_streaming();
  });
}

}  // namespace opforge
