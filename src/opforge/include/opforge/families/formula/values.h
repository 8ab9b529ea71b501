// SPDX-License-Identifier: Apache-2.0
// What the functions of a formula return: several numbers, what is added up over a row, or the
// largest of it. For the GPU and, with vectors as numbers, for the CPU. Includes no torch header.
#pragma once

#include <opforge/core/types.h>

#include <cstdint>
#include <limits>
#include <type_traits>

namespace opforge {

// The step of a formula over rows, see rows.cuh.
template <int step>
using Step = std::integral_constant<int, step>;

// The type of one number: of a vector, that of a lane.
template <class V>
struct LaneOf {
  using type = std::remove_cvref_t<decltype(V()[0])>;
};
template <>
struct LaneOf<float> {
  using type = float;
};
template <>
struct LaneOf<double> {
  using type = double;
};

// Results of an element.
template <class V, int N>
struct Values {
  V value[N] = {};
  OPFORGE_HOST_DEVICE V operator[](int k) const { return value[k]; }
};

// What an element adds to the sums of its row.
template <class V, int N>
struct Sums : Values<V, N> {
  static constexpr bool kLargest = false;
  OPFORGE_HOST_DEVICE void operator+=(const Sums& other) {
    for (int k = 0; k < N; ++k) this->value[k] += other.value[k];
  }
};

// What competes to be the largest of a row. NaN wins.
template <class V, int N>
struct Largest {
  static constexpr bool kLargest = true;
  V value[N];

  OPFORGE_HOST_DEVICE Largest() {
    for (int k = 0; k < N; ++k) {
      value[k] = V{} - std::numeric_limits<typename LaneOf<V>::type>::infinity();
    }
  }
  template <class... In>
    requires(sizeof...(In) == N)
  OPFORGE_HOST_DEVICE Largest(In... in) : value{in...} {}
  OPFORGE_HOST_DEVICE V operator[](int k) const { return value[k]; }
  OPFORGE_HOST_DEVICE void operator+=(const Largest& other) {
    for (int k = 0; k < N; ++k) {
      const V a = value[k], b = other.value[k];
      value[k] = (b > a) | (b != b) ? b : a;
    }
  }
};

}  // namespace opforge
