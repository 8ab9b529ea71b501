// SPDX-License-Identifier: Apache-2.0
// What CPU and GPU kernels share: beyond the edges, the weights, the gradient of one pixel.
#pragma once

#include <opforge/core/types.h>

#include <cmath>

namespace opforge {

enum class Boundary : int { constant, replicate, reflect, periodic };

// The row (or column) that stands in for i, which may be beyond the first or the last of n; -1:
// none does.
OPFORGE_HOST_DEVICE int64_t stand_in(int64_t i, int64_t n, Boundary boundary) {
  if (i >= 0 && i < n) return i;
  if (boundary == Boundary::replicate) return i < 0 ? 0 : n - 1;
  if (boundary == Boundary::reflect) return i < 0 ? 1 : n - 2;
  if (boundary == Boundary::periodic) return i < 0 ? n - 1 : 0;
  return -1;
}

// Where weight k of `count` is in a 3 x 3 matrix.
OPFORGE_HOST_DEVICE int place_of_weight(int k, int count) {
  return count == 9 ? k : k == 0 ? 4 : k == 1 ? 1 : k == 2 ? 7 : k == 3 ? 3 : 5;
}

// Whether a stencil of `count` weights looks at this place of the matrix.
OPFORGE_HOST_DEVICE bool has_place(int place, int count) {
  return count == 9 || place == 4 || place % 2 == 1;
}

// a * b + c, rounded once.
OPFORGE_HOST_DEVICE float fused(float a, float b, float c) { return ::fmaf(a, b, c); }
OPFORGE_HOST_DEVICE double fused(double a, double b, double c) { return ::fma(a, b, c); }

template <class T>
struct Image {
  const T* data;
  int64_t row_stride;
  int64_t height, width;
};

// The gradient of a pixel near an edge. Besides itself it may have stood in for pixels beyond; each
// of them gets what its neighbours inside of the image pass back.
template <class T, class A>
OPFORGE_HOST_DEVICE A gradient_at_edge(const Image<T>& grad, const A (&weight)[9], int count,
                                       Boundary boundary, int64_t row, int64_t col) {
  A sum = 0;
  for (int i = 0; i < 9; ++i) {
    const int64_t r = i / 3 == 0 ? row : i / 3 == 1 ? -1 : grad.height;
    const int64_t c = i % 3 == 0 ? col : i % 3 == 1 ? -1 : grad.width;
    if (stand_in(r, grad.height, boundary) != row || stand_in(c, grad.width, boundary) != col) {
      continue;
    }
    for (int place = 0; place < 9; ++place) {
      const int64_t from_row = r + 1 - place / 3, from_col = c + 1 - place % 3;
      if (has_place(place, count) && from_row >= 0 && from_row < grad.height && from_col >= 0 &&
          from_col < grad.width) {
        const A passed = widen(grad.data[from_row * grad.row_stride + from_col]);
        sum = fused(weight[place], passed, sum);
      }
    }
  }
  return sum;
}

// Rows and columns nearer to an edge than this may have stood in for others.
constexpr int64_t kEdge = 2;

}  // namespace opforge
