// SPDX-License-Identifier: Apache-2.0
// y = act(gate) * up and its gradients on the CPU, any strides. Includes no torch header.
#pragma once

#include <opforge/cpu/elementwise.h>

#include <concepts>

namespace opforge {

// An activation of vectors V. gradient() returns the gradient of x, given `passed`, that of
// value(x), and sets `value` as well:
//
//   struct Square {
//     auto value(vec<float> x) const { return x * x; }
//     auto gradient(vec<float> x, vec<float> passed, vec<float>& value) const {
//       value = x * x;
//       return 2 * x * passed;
//     }
//   };
template <class Act, class V>
concept GateActivation = requires(const Act& act, V x, V& value) {
  { act.value(x) } -> std::convertible_to<V>;
  { act.gradient(x, x, value) } -> std::convertible_to<V>;
};

template <class T, class Act>
  requires GateActivation<Act, vec<T>>
void gated_forward(const Layout<3>& layout, T* y, const T* gate, const T* up, const Act& act) {
  elementwise(layout, y, {gate, up}, [act](auto g, auto u) { return act.value(g) * u; });
}

// One row or a piece of it: operands in the order of the layout, that is grad_gate, grad_up,
// grad_y, gate, up.
template <class T, class Act>
OPFORGE_INLINE void gated_backward_row(T* grad_gate, T* grad_up, const T* const (&in)[3],
                                       const int64_t (&stride)[5], int64_t n, const Act& act) {
  constexpr int64_t lanes = kLanes<T>;
  bool dense = true;
  for (const int64_t s : stride) dense = dense && s == 1;
  int64_t i = 0;
  vec<T> value;
  for (; dense && i + lanes <= n; i += lanes) {
    const vec<T> grad = load(in[0] + i);
    store(grad_gate + i, act.gradient(load(in[1] + i), grad * load(in[2] + i), value));
    store(grad_up + i, grad * value);
  }
  for (; i < n; i += lanes) {
    const int64_t some = std::min(lanes, n - i);
    const auto at = [&](int k) {
      return load_some(in[k] + i * stride[k + 2], stride[k + 2], some);
    };
    const vec<T> grad = at(0), passed = act.gradient(at(1), grad * at(2), value);
    store_some(grad_gate + i * stride[0], stride[0], some, passed);
    store_some(grad_up + i * stride[1], stride[1], some, grad * value);
  }
}

template <class T, class Act>
  requires GateActivation<Act, vec<T>>
void gated_backward(const Layout<5>& layout, T* grad_gate, T* grad_up, const T* grad_y,
                    const T* gate, const T* up, const Act& act) {
  const int64_t bytes = layout.count() * int64_t(sizeof(T));
  prefer_huge_pages(grad_gate, bytes);
  prefer_huge_pages(grad_up, bytes);
  const Tiles<5> tiles(layout, 4096);
  const int64_t grain = std::max<int64_t>(1, kGrain / tiles.tile);
  parallel_for(tiles.outer.count(), grain, [&](int64_t begin, int64_t end) {
    Walk<5> at(tiles.outer, begin);
    for (; begin < end; ++begin, at.next()) {
      const int64_t (&offset)[5] = at.offset;
      gated_backward_row(grad_gate + offset[0], grad_up + offset[1],
                         {grad_y + offset[2], gate + offset[3], up + offset[4]}, tiles.stride,
                         tiles.length(at), act);
    }
  });
}

}  // namespace opforge
