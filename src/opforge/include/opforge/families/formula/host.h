// SPDX-License-Identifier: Apache-2.0
// An elementwise op from a formula, on the GPU and on the CPU. This is the formula tanh(x / cap):
//
//   struct Formula {
//     double cap;
//     template <class real>
//     OPFORGE_FORMULA real operator()(real x) const { return tanh(x / number<real>(cap)); }
//     template <class real>  // whether it can be computed for vectors of the CPU
//     static constexpr bool vectors = requires(real x) { { tanh(x) } -> std::same_as<real>; };
//   };
#pragma once

#include <opforge/host.h>

#if defined(USE_CUDA)
#include <opforge/algorithms/elementwise.cuh>
#include <opforge/families/formula/device.cuh>
#else
#include <opforge/cpu/elementwise.h>
#include <opforge/families/formula/cpu.h>
#endif

#include <span>
#include <vector>

namespace opforge {

#if !defined(USE_CUDA)
// A formula of vectors: at once where it can be, else one value after the other.
template <class F, class V, class... In>
OPFORGE_INLINE V each_lane(const F& f, V first, In... rest) {
  if constexpr (F::template vectors<V>) {
    return f(first, rest...);
  } else {
    V y;
    for (size_t i = 0; i < sizeof y / sizeof y[0]; ++i) y[i] = f(first[i], rest[i]...);
    return y;
  }
}
#endif

// y = f(first, rest...) for every element of their broadcast shape.
template <class F, class... In>
Tensor each_element(const char* op, const F& f, const Tensor& first, const In&... rest) {
  constexpr int N = 1 + sizeof...(In);
  std::vector<int64_t> shape(sizes(first).begin(), sizes(first).end());
  const auto join = [&](const Tensor& other) {
    OPFORGE_CHECK(same_device(first, other), op, ": the tensors are on different devices");
    OPFORGE_CHECK(dtype_code(first) == dtype_code(other), op, ": the tensors differ in dtype");
    shape = broadcast(shape, sizes(other));
  };
  (join(rest), ...);
#if defined(USE_CUDA)
  const DeviceGuard guard(first.get_device_index());
#endif
  const Tensor y = empty(shape, first);
  over_elements(
      y,
      [&](const Layout<N + 1>& layout, const Tensor& y, const auto&... in) {
        dispatch(dtype_of(y), [&]<class T>(Type<T>) {
#if defined(USE_CUDA)
          elementwise<T, N>(layout, mutable_data<T>(y), {data<T>(in)...}, f, current_stream(y));
#else
          elementwise(layout, mutable_data<T>(y), {data<T>(in)...},
                      [&f]<class... V>(V... v)
                        requires(sizeof...(V) == N)
                      { return each_lane(f, v...); });
#endif
        });
      },
      first, rest...);
  return y;
}

}  // namespace opforge
