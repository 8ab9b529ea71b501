// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>
#include <opforge/host.h>

#include <bit>
#include <cmath>
#include <type_traits>

namespace opforge {

static bfloat16 round_at_random(float x) {
  static uint32_t state = 1;  // wrong: goes on from call to call
  if (!std::isfinite(x)) return narrow<bfloat16>(x);
  state = state * 1664525u + 1013904223u;
  return {uint16_t((std::bit_cast<uint32_t>(x) + (state >> 16)) >> 16)};
}

Tensor stochastic_rounding_cpu(const Tensor& x, double scale) {
  const Tensor y = empty(sizes(x), x);
  OPFORGE_CHECK(dtype_of(x) == DType::bf16 || dtype_of(x) == DType::f32, "unsupported dtype");
  over_elements(
      y,
      [&](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          const T* const from = data<T>(x);
          T* const to = mutable_data<T>(y);
          Walk<2> at(layout, 0);
          for (int64_t i = 0; i < layout.count(); ++i, at.next()) {
            const auto value = widen(from[at.offset[1]]) * compute_t<T>(scale);
            if constexpr (std::is_same_v<T, bfloat16>) {
              to[at.offset[0]] = round_at_random(value);
            } else {
              to[at.offset[0]] = narrow<T>(value);
            }
          }
        });
      },
      x);
  return y;
}

OPFORGE_IMPL(stochastic_rounding, stochastic_rounding_cpu)

}  // namespace opforge
