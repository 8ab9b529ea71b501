// SPDX-License-Identifier: Apache-2.0
// An activation that is chosen at run time, of CPU vectors. Includes no torch header.
#pragma once

#include <opforge/families/activations/cpu.h>
#include <opforge/families/product/finish.h>

namespace opforge {

template <class T>
struct Identity {
  using V = vec<T>;

  OPFORGE_INLINE V value(V x) const { return x; }
  OPFORGE_INLINE V gradient(V x, V passed, V& result) const {
    result = x;
    return passed;
  }
};

template <class T>
struct Sigmoid {
  using V = vec<T>;

  OPFORGE_INLINE V value(V x) const {
    if constexpr (kShort<T>) return Logistic(x).value;
    return 1 / (fast_exp(-x) + 1);
  }
  OPFORGE_INLINE V gradient(V x, V passed, V& result) const {
    result = value(x);
    return passed * (1 - result) * result;
  }
};

template <class T, class F>
void with_activation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::none:
      return f(Identity<T>{});
    case Activation::relu:
      return f(Relu<T>{});
    case Activation::gelu:
      return f(Gelu<T, false>{});
    case Activation::gelu_tanh:
      return f(Gelu<T, true>{});
    case Activation::silu:
      return f(Silu<T>{});
    case Activation::sigmoid:
      return f(Sigmoid<T>{});
  }
}

// finish.after() of a vector.
template <class T>
OPFORGE_INLINE vec<T> finished(const Finish& finish, vec<T> value) {
  using A = compute_t<T>;
  vec<T> y = value * A(finish.scale);
  if (finish.limits) {
    const vec<T> zero{}, low = A(finish.low) - zero, high = A(finish.high) - zero;
    y = y < low ? low : y;
    y = y > high ? high : y;
  }
  return y;
}

// The gradient where finish.passes() it.
template <class T>
OPFORGE_INLINE vec<T> passing(const Finish& finish, vec<T> value, vec<T> gradient) {
  using A = compute_t<T>;
  if (!finish.limits) return gradient;
  const vec<T> y = value * A(finish.scale), zero{};
  const vec<T> above = y < A(finish.low) ? zero : gradient;
  return y > A(finish.high) ? zero : above;
}

}  // namespace opforge
