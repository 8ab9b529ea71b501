// SPDX-License-Identifier: Apache-2.0
// What the lanes of a warp do together.
#pragma once

#include <opforge_sim/runtime.h>

#include <cstring>

namespace opforge::sim {

template <class T>
OPFORGE_SIM_INLINE T exchange(Lanes operation, unsigned mask, const T& value, int argument,
                              int width, const Where& where) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  Offer offer{operation, mask, 0, argument, width};
  std::memcpy(&offer.value, &value, sizeof(T));
  const uint64_t got = warp(offer, where);
  T result;
  std::memcpy(&result, &got, sizeof(T));
  return result;
}

template <class T>
OPFORGE_SIM_INLINE T reduce(Reduce how, unsigned mask, T value, const Where& where) {
  static_assert(sizeof(T) == 4, "reductions of a warp take 32-bit integers");
  return T(uint32_t(warp({Lanes::reduce, mask, uint32_t(value), int(how), 32}, where)));
}

OPFORGE_SIM_INLINE void warp_multiply(const WarpProduct& part,
                                      const Where& where = Where::current()) {
  warp({Lanes::multiply, 0xffffffffu, reinterpret_cast<uintptr_t>(&part), 0, 32}, where);
}

}  // namespace opforge::sim

#define OPFORGE_SIM_HERE ::std::source_location where = ::std::source_location::current()

template <class T>
OPFORGE_SIM_INLINE T __shfl_sync(unsigned mask, T value, int lane, int width = 32,
                                 OPFORGE_SIM_HERE) {
  return opforge::sim::exchange(opforge::sim::Lanes::shuffle, mask, value, lane, width, where);
}
template <class T>
OPFORGE_SIM_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32,
                                    OPFORGE_SIM_HERE) {
  return opforge::sim::exchange(opforge::sim::Lanes::up, mask, value, int(by), width, where);
}
template <class T>
OPFORGE_SIM_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32,
                                      OPFORGE_SIM_HERE) {
  return opforge::sim::exchange(opforge::sim::Lanes::down, mask, value, int(by), width, where);
}
template <class T>
OPFORGE_SIM_INLINE T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32,
                                     OPFORGE_SIM_HERE) {
  return opforge::sim::exchange(opforge::sim::Lanes::exclusive_or, mask, value, lanes, width,
                                where);
}

OPFORGE_SIM_INLINE void __syncwarp(unsigned mask = 0xffffffffu, OPFORGE_SIM_HERE) {
  opforge::sim::warp({opforge::sim::Lanes::sync, mask, 0, 0, 32}, where);
}
OPFORGE_SIM_INLINE unsigned __ballot_sync(unsigned mask, int predicate, OPFORGE_SIM_HERE) {
  return unsigned(
      opforge::sim::warp({opforge::sim::Lanes::ballot, mask, predicate != 0, 0, 32}, where));
}
OPFORGE_SIM_INLINE int __all_sync(unsigned mask, int predicate, OPFORGE_SIM_HERE) {
  return int(opforge::sim::warp({opforge::sim::Lanes::all, mask, predicate != 0, 0, 32}, where));
}
OPFORGE_SIM_INLINE int __any_sync(unsigned mask, int predicate, OPFORGE_SIM_HERE) {
  return int(opforge::sim::warp({opforge::sim::Lanes::any, mask, predicate != 0, 0, 32}, where));
}
template <class T>
OPFORGE_SIM_INLINE unsigned __match_any_sync(unsigned mask, T value, OPFORGE_SIM_HERE) {
  static_assert(sizeof(T) <= 8, "a match compares at most 8 bytes");
  opforge::sim::Offer offer{opforge::sim::Lanes::match, mask, 0, 0, 32};
  std::memcpy(&offer.value, &value, sizeof(T));
  return unsigned(opforge::sim::warp(offer, where));
}
OPFORGE_SIM_INLINE unsigned __activemask(OPFORGE_SIM_HERE) {
  return opforge::sim::active_mask(where);
}

// For int and unsigned, as CUDA has them; an Index is an unsigned.
#define OPFORGE_SIM_REDUCE(name, Signed, Unsigned)                                               \
  OPFORGE_SIM_INLINE int name(unsigned mask, int value, OPFORGE_SIM_HERE) {                      \
    return opforge::sim::reduce(opforge::sim::Reduce::Signed, mask, value, where);               \
  }                                                                                              \
  OPFORGE_SIM_INLINE unsigned name(unsigned mask, unsigned value, OPFORGE_SIM_HERE) {            \
    return opforge::sim::reduce(opforge::sim::Reduce::Unsigned, mask, value, where);             \
  }                                                                                              \
  OPFORGE_SIM_INLINE unsigned name(unsigned mask, opforge::sim::Index value, OPFORGE_SIM_HERE) { \
    return opforge::sim::reduce(opforge::sim::Reduce::Unsigned, mask, value.bits(), where);      \
  }
OPFORGE_SIM_REDUCE(__reduce_add_sync, add, add)
OPFORGE_SIM_REDUCE(__reduce_min_sync, min_signed, min)
OPFORGE_SIM_REDUCE(__reduce_max_sync, max_signed, max)
#undef OPFORGE_SIM_REDUCE
OPFORGE_SIM_INLINE unsigned __reduce_and_sync(unsigned mask, unsigned value, OPFORGE_SIM_HERE) {
  return opforge::sim::reduce(opforge::sim::Reduce::bit_and, mask, value, where);
}
OPFORGE_SIM_INLINE unsigned __reduce_or_sync(unsigned mask, unsigned value, OPFORGE_SIM_HERE) {
  return opforge::sim::reduce(opforge::sim::Reduce::bit_or, mask, value, where);
}
OPFORGE_SIM_INLINE unsigned __reduce_xor_sync(unsigned mask, unsigned value, OPFORGE_SIM_HERE) {
  return opforge::sim::reduce(opforge::sim::Reduce::bit_xor, mask, value, where);
}
#undef OPFORGE_SIM_HERE
