// SPDX-License-Identifier: Apache-2.0
// Dropout as a function for cpu/elementwise.h. Includes no torch header.
#pragma once

#include <opforge/cpu/elementwise.h>
#include <opforge/cpu/rng.h>

namespace opforge {

template <class T>
struct CpuDropout {
  uint64_t seed;
  uint32_t threshold;
  vec<T> scale;

  CpuDropout(const int64_t* seed, double p)
      : seed(uint64_t(*seed)),
        threshold(drop_threshold(p)),
        scale(compute_t<T>(kept_scale(p)) - vec<T>{}) {}

  struct Row {
    const CpuDropout& drop;
    RandomHalves<kRowElements> random;
    const uint16_t* halves;

    Row(const CpuDropout& drop, int64_t first, int64_t n)
        : drop(drop), halves(random.draw(drop.seed, uint64_t(first), n)) {}

    OPFORGE_INLINE vec<T> operator()(int64_t i, vec<T> x) const {
      return where_kept(halves + i, drop.threshold, x * drop.scale);
    }
    // residual + dropout(x + bias)
    OPFORGE_INLINE vec<T> operator()(int64_t i, vec<T> x, vec<T> residual) const {
      return fma(where_kept(halves + i, drop.threshold, x), drop.scale, residual);
    }
    OPFORGE_INLINE vec<T> operator()(int64_t i, vec<T> x, vec<T> residual, vec<T> bias) const {
      return (*this)(i, x + bias, residual);
    }
  };

  Row row(int64_t first, int64_t n) const { return Row(*this, first, n); }
};

}  // namespace opforge
