// SPDX-License-Identifier: Apache-2.0
// threadIdx.x and its like: integers that know their exact value, so that arithmetic which would
// wrap at 2^32 on the GPU is reported where the wrapped value would be used.
//
// An Index behaves like the `unsigned int` it is in CUDA. Only going above the range is reported: a
// difference below zero wraps, as `int left = threadIdx.x - 1` expects. Arithmetic with a 64-bit
// operand is 64-bit arithmetic and leaves this class. To wrap on purpose, say so first:
// `unsigned(threadIdx.x) * 2654435761u`.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace opforge::sim {

// Reports an index that does not fit `type`.
__attribute__((visibility("default"))) void index_overflow(int64_t exact, const char* type);

class Index {
 public:
  Index() = default;
  static constexpr Index of(int64_t exact) {
    Index result;
    result.exact_ = exact;
    return result;
  }

  // Not a template, so that `switch (threadIdx.x)` finds it.
  operator unsigned() const { return bits(); }

  template <class T>
    requires std::is_arithmetic_v<T>
  operator T() const {
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

  // The value CUDA computes with: modulo 2^32.
  uint32_t bits() const {
    if (exact_ > std::numeric_limits<uint32_t>::max()) [[unlikely]]
      index_overflow(exact_, "unsigned int");
    return uint32_t(exact_);
  }
  int64_t exact() const { return exact_; }

  template <class T>
  Index& operator+=(T b) {
    return *this = Index::of(int64_t(*this + b));
  }
  template <class T>
  Index& operator-=(T b) {
    return *this = Index::of(int64_t(*this - b));
  }
  template <class T>
  Index& operator*=(T b) {
    return *this = Index::of(int64_t(*this * b));
  }
  template <class T>
  Index& operator/=(T b) {
    return *this = Index::of(int64_t(*this / b));
  }
  Index& operator++() {
    ++exact_;
    return *this;
  }
  Index operator++(int) {
    const Index before = *this;
    ++exact_;
    return before;
  }
  Index& operator--() {
    --exact_;
    return *this;
  }
  Index operator--(int) {
    const Index before = *this;
    --exact_;
    return before;
  }
  Index operator-() const { return of(-exact_); }
  Index operator+() const { return *this; }
  Index operator~() const { return of(uint32_t(~bits())); }

 private:
  int64_t exact_;
};

template <class T>
concept Number = std::is_arithmetic_v<T>;
template <class T>
concept Narrow = std::is_integral_v<T> && sizeof(T) <= 4;

namespace detail {

inline int64_t exact_product(int64_t a, int64_t b) {
  int64_t result;
  return __builtin_mul_overflow(a, b, &result) ? std::numeric_limits<int64_t>::max() : result;
}

// What CUDA makes of `unsigned OP b`.
struct Add {
  template <class A>
  static A apply(A a, A b) {
    return a + b;
  }
};
struct Subtract {
  template <class A>
  static A apply(A a, A b) {
    return a - b;
  }
};
struct Multiply {
  template <class A>
  static A apply(A a, A b) {
    if constexpr (std::is_same_v<A, int64_t>) return exact_product(a, b);
    return a * b;
  }
};

template <class Op, Number T>
auto exact(Index a, T b) {
  if constexpr (Narrow<T>) {
    return Index::of(Op::template apply<int64_t>(a.exact(), int64_t(b)));
  } else {
    return Op::template apply<T>(T(a), b);
  }
}
template <class Op, Number T>
auto exact(T a, Index b) {
  if constexpr (Narrow<T>) {
    return Index::of(Op::template apply<int64_t>(int64_t(a), b.exact()));
  } else {
    return Op::template apply<T>(a, T(b));
  }
}

// The 32-bit value of an operand, or the operand itself where it is wider.
inline uint32_t plain(Index a) { return a.bits(); }
template <Number T>
auto plain(T a) {
  if constexpr (Narrow<T>) {
    return uint32_t(a);
  } else {
    return a;
  }
}
inline Index wrap(uint32_t value) { return Index::of(value); }
template <Number T>
T wrap(T value) {
  return value;
}

template <class T>
constexpr bool is_index = std::is_same_v<T, Index>;
template <class A, class B>
concept WithIndex = (is_index<A> && (is_index<B> || Number<B>)) || (Number<A> && is_index<B>);

}  // namespace detail

#define OPFORGE_SIM_EXACT(op, Name)                              \
  inline Index operator op(Index a, Index b) {                   \
    return Index::of(detail::Name::apply(a.exact(), b.exact())); \
  }                                                              \
  template <Number T>                                            \
  auto operator op(Index a, T b) {                               \
    return detail::exact<detail::Name>(a, b);                    \
  }                                                              \
  template <Number T>                                            \
  auto operator op(T a, Index b) {                               \
    return detail::exact<detail::Name>(a, b);                    \
  }
OPFORGE_SIM_EXACT(+, Add)
OPFORGE_SIM_EXACT(-, Subtract)
OPFORGE_SIM_EXACT(*, Multiply)
#undef OPFORGE_SIM_EXACT

// Division, bits and shifts to the right see the wrapped value.
#define OPFORGE_SIM_PLAIN(op)                                  \
  template <class A, class B>                                  \
    requires detail::WithIndex<A, B>                           \
  auto operator op(A a, B b) {                                 \
    return detail::wrap(detail::plain(a) op detail::plain(b)); \
  }
OPFORGE_SIM_PLAIN(/)
OPFORGE_SIM_PLAIN(%)
OPFORGE_SIM_PLAIN(&)
OPFORGE_SIM_PLAIN(|)
OPFORGE_SIM_PLAIN(^)
OPFORGE_SIM_PLAIN(>>)
#undef OPFORGE_SIM_PLAIN

template <class B>
  requires std::is_integral_v<B> || std::is_same_v<B, Index>
Index operator<<(Index a, B b) {
  return Index::of(detail::exact_product(a.exact(), int64_t(1) << unsigned(b)));
}
template <std::integral A>
A operator<<(A a, Index b) {
  return a << b.bits();
}

#define OPFORGE_SIM_COMPARE(op)                  \
  template <class A, class B>                    \
    requires detail::WithIndex<A, B>             \
  bool operator op(A a, B b) {                   \
    return detail::plain(a) op detail::plain(b); \
  }
OPFORGE_SIM_COMPARE(==)
OPFORGE_SIM_COMPARE(!=)
OPFORGE_SIM_COMPARE(<)
OPFORGE_SIM_COMPARE(<=)
OPFORGE_SIM_COMPARE(>)
OPFORGE_SIM_COMPARE(>=)
#undef OPFORGE_SIM_COMPARE

// `i += blockDim.x` for a plain i. Without these the conversions of Index would be ambiguous.
#define OPFORGE_SIM_ASSIGN(op)          \
  template <Number T>                   \
  T& operator op## = (T & a, Index b) { \
    return a = T(a op b);               \
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
