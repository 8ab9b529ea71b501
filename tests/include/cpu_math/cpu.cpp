// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>
#include <opforge/cpu/math.h>
#include <opforge/host.h>

namespace opforge {

Tensor cpu_math_cpu(const Tensor& x, int64_t which) {
  const Tensor y = empty(sizes(x), x);
  over_elements(
      y,
      [which](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          const auto run = [&](const auto& f) {
            elementwise(layout, mutable_data<T>(y), {data<T>(x)}, f);
          };
          if (which == 0) run([](auto v) { return exp(v); });
          if (which == 1) run([](auto v) { return log(v); });
          if (which == 2) run([](auto v) { return tanh(v); });
          if (which == 3) run([](auto v) { return erf(v); });
          if (which == 4) run([](auto v) { return sigmoid(v); });
          if (which == 5) run([](auto v) { return exp_below(v); });
          if (which == 6) run([](auto v) { return fast_exp(v); });
        });
      },
      x);
  return y;
}

OPFORGE_IMPL(cpu_math, cpu_math_cpu)

}  // namespace opforge
