// SPDX-License-Identifier: Apache-2.0
// threadIdx.x and its like: integers that know their exact value, so that arithmetic which would
// wrap at 2^32 on the GPU is reported where the wrapped value would be used.
//
// An Index behaves like the `unsigned int` it is in CUDA. Only going above the range is reported: a
// difference below zero wraps, as `int left = threadIdx.x - 1` expects. Arithmetic with a 64-bit
// operand is 64-bit arithmetic and leaves this class. To wrap on purpose, say so first:
// `unsigned(threadIdx.x) * 2654435761u`. What no class can imitate: `switch (threadIdx.x)` needs an
// `int(...)`, and `c ? threadIdx.x : -1` is an int.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

// Always inlined, without optimisation too, so that the place of a report is the kernel's.
#define OPFORGE_SIM_INLINE __attribute__((always_inline)) inline

namespace opforge::sim {

// Reports an index that does not fit `type`.
__attribute__((visibility("default"))) void index_overflow(int64_t exact, const char* type);

template <class T>
concept Number = std::is_arithmetic_v<T>;
template <class T>
concept Narrow = std::is_integral_v<T> && sizeof(T) <= 4;

class Index {
 public:
  Index() = default;
  OPFORGE_SIM_INLINE static constexpr Index of(int64_t exact) {
    Index result;
    result.exact_ = exact;
    return result;
  }

  OPFORGE_SIM_INLINE operator unsigned() const { return bits(); }  // what g++ wants for a[i]
  template <Number T>
  OPFORGE_SIM_INLINE operator T() const {
    if constexpr (std::is_same_v<T, bool>) {
      return bits() != 0;
    } else if constexpr (std::is_integral_v<T> && std::is_signed_v<T> && sizeof(T) == 4) {
      if (exact_ > std::numeric_limits<int32_t>::max()) [[unlikely]]
        index_overflow(exact_, "int");
      return T(exact_);
    } else {
      return T(bits());
    }
  }

  template <Number T>
  OPFORGE_SIM_INLINE Index& operator=(T value) {
    exact_ = Narrow<T> ? int64_t(value) : int64_t(uint32_t(value));
    return *this;
  }

  // The value CUDA computes with: modulo 2^32.
  OPFORGE_SIM_INLINE uint32_t bits() const {
    if (exact_ > std::numeric_limits<uint32_t>::max()) [[unlikely]]
      index_overflow(exact_, "unsigned int");
    return uint32_t(exact_);
  }
  OPFORGE_SIM_INLINE int64_t exact() const { return exact_; }

  OPFORGE_SIM_INLINE Index& operator++() {
    ++exact_;
    return *this;
  }
  OPFORGE_SIM_INLINE Index operator++(int) {
    const Index before = *this;
    ++exact_;
    return before;
  }
  OPFORGE_SIM_INLINE Index& operator--() {
    --exact_;
    return *this;
  }
  OPFORGE_SIM_INLINE Index operator--(int) {
    const Index before = *this;
    --exact_;
    return before;
  }
  OPFORGE_SIM_INLINE Index operator-() const { return of(-exact_); }
  OPFORGE_SIM_INLINE Index operator+() const { return *this; }
  OPFORGE_SIM_INLINE Index operator~() const { return of(-1 - exact_); }

 private:
  int64_t exact_;
};

namespace detail {

template <class A, class B>
concept WithIndex = (std::same_as<A, Index> && (std::same_as<B, Index> || Number<B>)) ||
                    (Number<A> && std::same_as<B, Index>);

// An operand's exact value where the other one allows 32-bit arithmetic, else the operand itself.
OPFORGE_SIM_INLINE int64_t exact(Index a) { return a.exact(); }
template <Narrow T>
OPFORGE_SIM_INLINE int64_t exact(T a) {
  return int64_t(a);
}
template <class T>
constexpr bool fits = std::same_as<T, Index> || Narrow<T>;

struct Add {
  template <class A, class B>
  OPFORGE_SIM_INLINE static auto apply(A a, B b) {
    return a + b;
  }
};
struct Subtract {
  template <class A, class B>
  OPFORGE_SIM_INLINE static auto apply(A a, B b) {
    return a - b;
  }
};
struct Multiply {
  template <class A, class B>
  OPFORGE_SIM_INLINE static auto apply(A a, B b) {
    return a * b;
  }
  OPFORGE_SIM_INLINE static int64_t apply(int64_t a, int64_t b) {
    int64_t result;
    return __builtin_mul_overflow(a, b, &result) ? std::numeric_limits<int64_t>::max() : result;
  }
};

// The 32-bit value of an operand, or the operand itself where it is wider.
OPFORGE_SIM_INLINE uint32_t plain(Index a) { return a.bits(); }
template <Number T>
OPFORGE_SIM_INLINE auto plain(T a) {
  if constexpr (Narrow<T>) {
    return uint32_t(a);
  } else {
    return a;
  }
}
OPFORGE_SIM_INLINE Index wrap(uint32_t value) { return Index::of(value); }
template <Number T>
OPFORGE_SIM_INLINE T wrap(T value) {
  return value;
}

}  // namespace detail

#define OPFORGE_SIM_EXACT(op, Name)                                              \
  template <class A, class B>                                                    \
    requires detail::WithIndex<A, B>                                             \
  OPFORGE_SIM_INLINE auto operator op(A a, B b) {                                \
    if constexpr (detail::fits<A> && detail::fits<B>) {                          \
      return Index::of(detail::Name::apply(detail::exact(a), detail::exact(b))); \
    } else {                                                                     \
      return detail::Name::apply(detail::plain(a), detail::plain(b));            \
    }                                                                            \
  }
OPFORGE_SIM_EXACT(+, Add)
OPFORGE_SIM_EXACT(-, Subtract)
OPFORGE_SIM_EXACT(*, Multiply)
#undef OPFORGE_SIM_EXACT

// Division and bits see the wrapped value.
#define OPFORGE_SIM_PLAIN(op)                                  \
  template <class A, class B>                                  \
    requires detail::WithIndex<A, B>                           \
  OPFORGE_SIM_INLINE auto operator op(A a, B b) {              \
    return detail::wrap(detail::plain(a) op detail::plain(b)); \
  }
OPFORGE_SIM_PLAIN(/)
OPFORGE_SIM_PLAIN(%)
OPFORGE_SIM_PLAIN(&)
OPFORGE_SIM_PLAIN(|)
OPFORGE_SIM_PLAIN(^)
#undef OPFORGE_SIM_PLAIN

// A shift has the type of its left operand.
template <class B>
  requires std::integral<B> || std::same_as<B, Index>
OPFORGE_SIM_INLINE Index operator<<(Index a, B b) {
  return Index::of(detail::Multiply::apply(a.exact(), int64_t(1) << uint32_t(b)));
}
template <class B>
  requires std::integral<B> || std::same_as<B, Index>
OPFORGE_SIM_INLINE Index operator>>(Index a, B b) {
  return Index::of(a.bits() >> uint32_t(b));
}
template <std::integral A>
OPFORGE_SIM_INLINE auto operator<<(A a, Index b) {
  return a << b.bits();
}
template <std::integral A>
OPFORGE_SIM_INLINE auto operator>>(A a, Index b) {
  return a >> b.bits();
}

#define OPFORGE_SIM_COMPARE(op)                   \
  template <class A, class B>                     \
    requires detail::WithIndex<A, B>              \
  OPFORGE_SIM_INLINE bool operator op(A a, B b) { \
    return detail::plain(a) op detail::plain(b);  \
  }
OPFORGE_SIM_COMPARE(==)
OPFORGE_SIM_COMPARE(!=)
OPFORGE_SIM_COMPARE(<)
OPFORGE_SIM_COMPARE(<=)
OPFORGE_SIM_COMPARE(>)
OPFORGE_SIM_COMPARE(>=)
#undef OPFORGE_SIM_COMPARE

// `i += blockDim.x` for an i of either kind. Without these the conversions would be ambiguous.
#define OPFORGE_SIM_ASSIGN(op)                                 \
  template <Number T>                                          \
  OPFORGE_SIM_INLINE T& operator op## = (T & a, Index b) {     \
    return a = T(a op b);                                      \
  }                                                            \
  template <class T>                                           \
    requires Number<T> || std::same_as<T, Index>               \
  OPFORGE_SIM_INLINE Index& operator op## = (Index & a, T b) { \
    return a = a op b;                                         \
  }
OPFORGE_SIM_ASSIGN(+)
OPFORGE_SIM_ASSIGN(-)
OPFORGE_SIM_ASSIGN(*)
OPFORGE_SIM_ASSIGN(/)
OPFORGE_SIM_ASSIGN(%)
OPFORGE_SIM_ASSIGN(&)
OPFORGE_SIM_ASSIGN(|)
OPFORGE_SIM_ASSIGN(^)
OPFORGE_SIM_ASSIGN(<<)
OPFORGE_SIM_ASSIGN(>>)
#undef OPFORGE_SIM_ASSIGN

struct Index3 {
  Index x, y, z;
};

}  // namespace opforge::sim
