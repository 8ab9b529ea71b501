// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/sum.h>
#include <opforge/host/split.h>

#include "host.h"

namespace opforge {

namespace {

constexpr int64_t kRowsOfTask = 16;
constexpr int64_t kColumnsOfSum = 1024;  // whose products are added up in lanes

template <class T>
struct Weights {
  compute_t<T> value[9] = {};
  int count;

  explicit Weights(const Tensor& weight, bool own_dtype) : count(int(weight.size(0))) {
    for (int k = 0; k < count; ++k) {
      const int64_t at = k * strides(weight)[0];
      value[place_of_weight(k, count)] =
          own_dtype ? widen(data<T>(weight)[at]) : compute_t<T>(data<float>(weight)[at]);
    }
  }
};

// Three rows of an image, one below the other; other rows stand in for those beyond the edges.
template <class T>
struct Rows {
  const T* row[3];
  int64_t width;
  Boundary boundary;
  T fill;

  // `filled` is a row of `fill`.
  Rows(const Image<T>& image, int64_t middle, Boundary boundary, const T* filled)
      : width(image.width), boundary(boundary), fill(*filled) {
    for (int i = 0; i < 3; ++i) {
      const int64_t r = stand_in(middle - 1 + i, image.height, boundary);
      row[i] = r < 0 ? filled : image.data + r * image.row_stride;
    }
  }

  // What weight `place` is multiplied with at a column.
  compute_t<T> at(int place, int64_t col) const {
    const int64_t c = stand_in(col - 1 + place % 3, width, boundary);
    return widen(c < 0 ? fill : row[place / 3][c]);
  }
  // The same for a vector of columns, none of them at an edge.
  OPFORGE_INLINE vec<T> vector(int place, int64_t col) const {
    return load(row[place / 3] + col - 1 + place % 3);
  }
};

template <int kCount, class T>
OPFORGE_INLINE void stencil_row(const Rows<T>& x, const compute_t<T> (&w)[9], T* y) {
  using A = compute_t<T>;
  vec<T> spread[9];
  for (int i = 0; i < 9; ++i) spread[i] = w[i] - vec<T>{};
  const auto place = [](int k) { return place_of_weight(k, kCount); };
  const auto one = [&](int64_t j) {
    A sum = w[place(0)] * x.at(place(0), j);
    for (int k = 1; k < kCount; ++k) sum = fused(w[place(k)], x.at(place(k), j), sum);
    y[j] = narrow<T>(sum);
  };
  one(0);
  int64_t j = 1;
  for (; j + kLanes<T> < x.width; j += kLanes<T>) {
    vec<T> sum = spread[place(0)] * x.vector(place(0), j);
#pragma GCC unroll 9
    for (int k = 1; k < kCount; ++k) sum = fma(spread[place(k)], x.vector(place(k), j), sum);
    store(y + j, sum);
  }
  for (; j < x.width; ++j) one(j);
}

// sums[i] += what weight i gets from this row.
template <int kCount, class T>
OPFORGE_INLINE void weight_row(const Rows<T>& x, const T* grad, sum_t<T> (&sums)[9]) {
  const auto one = [&](int64_t j) {
    for (int i = 0; i < 9; ++i) {
      if (has_place(i, kCount)) sums[i] += widen(grad[j]) * x.at(i, j);
    }
  };
  one(0);
  int64_t j = 1;
  const int64_t inside = x.width - kLanes<T>;
  while (j < inside) {
    vec<T> acc[9] = {};
    const int64_t end = std::min(j + kColumnsOfSum, inside);
    for (; j < end; j += kLanes<T>) {
      const vec<T> g = load(grad + j);
#pragma GCC unroll 9
      for (int i = 0; i < 9; ++i) {
        if (has_place(i, kCount)) acc[i] = fma(g, x.vector(i, j), acc[i]);
      }
    }
    for (int i = 0; i < 9; ++i) sums[i] += sum_lanes<compute_t<T>>(acc[i]);
  }
  for (; j < x.width; ++j) one(j);
}

template <class F>
void with_count(int count, const F& f) {
  if (count == 5) {
    f(std::integral_constant<int, 5>{});
  } else {
    f(std::integral_constant<int, 9>{});
  }
}

// Calls body(task, plane, first row, last row): tasks are cut by the shape alone.
template <class F>
void over_rows(const SplitView& s, const F& body) {
  const int64_t per_plane = ceil_div(s.length, kRowsOfTask);
  const int64_t grain = std::max<int64_t>(1, kGrain / (kRowsOfTask * s.inner));
  parallel_for(s.outer * per_plane, grain, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      const int64_t first = i % per_plane * kRowsOfTask;
      body(i, i / per_plane, first, std::min(first + kRowsOfTask, s.length));
    }
  });
}

template <class T>
Image<T> plane_of(const SplitView& s, int64_t plane) {
  return {data<T>(s.tensor) + plane * s.outer_stride, s.length_stride, s.length, s.inner};
}

}  // namespace

Tensor stencil2d_cpu(const Tensor& x, const Tensor& weight, int64_t boundary, double fill) {
  const Boundary kind = checked(x, weight, boundary);
  const Tensor y = empty(sizes(x), x);
  if (x.numel() == 0) return y;
  const SplitView s = split_at(x, x.dim() - 2);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    const Weights<T> w(weight, dtype_code(weight) == dtype_code(x));
    const std::vector<T> filled(size_t(s.inner), narrow<T>(compute_t<T>(fill)));
    T* const out = mutable_data<T>(y);
    prefer_huge_pages(out, y.numel() * int64_t(sizeof(T)));
    with_count(w.count, [&](auto count) {
      over_rows(s, [&](int64_t, int64_t plane, int64_t row, int64_t last) {
        const Image<T> image = plane_of<T>(s, plane);
        for (; row < last; ++row) {
          const Rows<T> rows(image, row, kind, filled.data());
          stencil_row<count>(rows, w.value, out + (plane * s.length + row) * s.inner);
        }
      });
    });
  });
  return y;
}

std::tuple<Tensor, Tensor> stencil2d_backward_cpu(const Tensor& grad_y, const Tensor& x,
                                                  const Tensor& weight, int64_t boundary,
                                                  double fill, bool needs_x, bool needs_weight) {
  const Boundary kind = checked(x, weight, boundary);
  const StencilGradients out = allocate_gradients(grad_y, x, weight, needs_x, needs_weight);
  if (x.numel() == 0) return {out.x, out.weight};
  const SplitView s = split_at(x, x.dim() - 2), g = split_at(grad_y, x.dim() - 2);
  const bool own_dtype = dtype_code(weight) == dtype_code(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    const Weights<T> w(weight, own_dtype);
    compute_t<T> flipped[9];
    for (int i = 0; i < 9; ++i) flipped[i] = w.value[8 - i];
    const std::vector<T> filled(size_t(s.inner), narrow<T>(compute_t<T>(fill)));
    T* const grad_x = needs_x ? mutable_data<T>(out.x) : nullptr;
    prefer_huge_pages(grad_x, out.x.numel() * int64_t(sizeof(T)));
    const int64_t tasks = s.outer * ceil_div(s.length, kRowsOfTask);
    const auto sums = std::make_unique<sum_t<T>[][9]>(size_t(tasks));
    with_count(w.count, [&](auto count) {
      over_rows(s, [&](int64_t task, int64_t plane, int64_t row, int64_t last) {
        const Image<T> image = plane_of<T>(s, plane), grad = plane_of<T>(g, plane);
        for (; row < last; ++row) {
          if (needs_weight) {
            const Rows<T> rows(image, row, kind, filled.data());
            weight_row<count>(rows, grad.data + row * grad.row_stride, sums[task]);
          }
          if (!needs_x) continue;
          T* const to = grad_x + (plane * s.length + row) * s.inner;
          const bool edge_row = row < kEdge || row >= s.length - kEdge;
          const auto edge = [&](int64_t from, int64_t end) {
            for (int64_t j = from; j < end; ++j) {
              to[j] = narrow<T>(gradient_at_edge(grad, w.value, w.count, kind, row, j));
            }
          };
          if (edge_row || s.inner <= 2 * kEdge) {
            edge(0, s.inner);
            continue;
          }
          stencil_row<count>(Rows<T>(grad, row, Boundary::replicate, filled.data()), flipped, to);
          edge(0, kEdge);
          edge(s.inner - kEdge, s.inner);
        }
      });
    });
    if (!needs_weight) return;
    for (int k = 0; k < w.count; ++k) {
      double total = 0;
      for (int64_t task = 0; task < tasks; ++task) {
        total += sums[task][place_of_weight(k, w.count)];
      }
      if (own_dtype) {
        mutable_data<T>(out.weight)[k] = round_sum<T>(total);
      } else {
        mutable_data<float>(out.weight)[k] = float(total);
      }
    }
  });
  return {out.x, out.weight};
}

OPFORGE_IMPL(stencil2d, stencil2d_cpu)
OPFORGE_IMPL(stencil2d_backward, stencil2d_backward_cpu)

}  // namespace opforge
