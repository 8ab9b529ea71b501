// SPDX-License-Identifier: Apache-2.0
// CUDA's atomics. Blocks run on several host threads, so these are atomic there, too.
#pragma once

#include <opforge_sim/runtime.h>

namespace opforge::sim {

// Replaces *address by change(*address) and returns what it was.
template <class T, class F>
OPFORGE_SIM_INLINE T exchange_with(T* address, const F& change) {
  atomic_access(address, sizeof(T));
  T before, after;
  __atomic_load(address, &before, __ATOMIC_SEQ_CST);
  do {
    after = change(before);
  } while (!__atomic_compare_exchange(address, &before, &after, false, __ATOMIC_SEQ_CST,
                                      __ATOMIC_SEQ_CST));
  return before;
}

// Integers of an atomic sum wrap: that is no overflow of an index.
template <class T>
OPFORGE_SIM_INLINE auto wrapping(T a) {
  if constexpr (std::is_integral_v<T>) {
    return std::make_unsigned_t<T>(a);
  } else {
    return a;
  }
}

}  // namespace opforge::sim

#define OPFORGE_SIM_ATOMIC(name, expression)                                         \
  template <class T>                                                                 \
  OPFORGE_SIM_INLINE T name(T* address, std::type_identity_t<T> b) {                 \
    return opforge::sim::exchange_with(address, [b](T a) { return T(expression); }); \
  }                                                                                  \
  template <class T>                                                                 \
  OPFORGE_SIM_INLINE T name##_block(T* address, std::type_identity_t<T> b) {         \
    return name(address, b);                                                         \
  }                                                                                  \
  template <class T>                                                                 \
  OPFORGE_SIM_INLINE T name##_system(T* address, std::type_identity_t<T> b) {        \
    return name(address, b);                                                         \
  }
OPFORGE_SIM_ATOMIC(atomicAdd, opforge::sim::wrapping(a) + opforge::sim::wrapping(b))
OPFORGE_SIM_ATOMIC(atomicSub, opforge::sim::wrapping(a) - opforge::sim::wrapping(b))
OPFORGE_SIM_ATOMIC(atomicMin, b < a ? b : a)
OPFORGE_SIM_ATOMIC(atomicMax, a < b ? b : a)
OPFORGE_SIM_ATOMIC(atomicAnd, a& b)
OPFORGE_SIM_ATOMIC(atomicOr, a | b)
OPFORGE_SIM_ATOMIC(atomicXor, a ^ b)
OPFORGE_SIM_ATOMIC(atomicInc, a >= b ? 0 : a + 1)
OPFORGE_SIM_ATOMIC(atomicDec, a == 0 || a > b ? b : a - 1)
OPFORGE_SIM_ATOMIC(atomicExch, (void(a), b))
#undef OPFORGE_SIM_ATOMIC

template <class T>
OPFORGE_SIM_INLINE T atomicCAS(T* address, std::type_identity_t<T> expected,
                               std::type_identity_t<T> desired) {
  return opforge::sim::exchange_with(address, [=](T a) { return a == expected ? desired : a; });
}
