// SPDX-License-Identifier: Apache-2.0
// The rows of tensors on the CPU, vector by vector. Includes no torch header.
#pragma once

#include <opforge/cpu/elementwise.h>

namespace opforge {

// Rows along the last dim, which is contiguous; the other dims have any strides. Null: no rows.
template <class T>
struct Rows {
  const T* data = nullptr;
  Layout<1> leading;
};

// One row after another.
template <class T>
class RowsFrom {
 public:
  RowsFrom(const Rows<T>& rows, int64_t first) : data_(rows.data), at_(rows.leading, first) {}
  const T* row() const { return data_ + at_.offset[0]; }
  void next() { at_.next(); }

 private:
  const T* data_;
  Walk<1> at_;
};

// How many lanes of a vector are there: a constant where all of them are.
template <class T>
using AllLanes = std::integral_constant<int64_t, kLanes<T>>;

template <class T>
OPFORGE_INLINE vec<T> load_lanes(const T* p, AllLanes<T>) {
  return load(p);
}
template <class T>
OPFORGE_INLINE vec<T> load_lanes(const T* p, int64_t n) {
  return load_some(p, 1, n);
}
template <class T>
OPFORGE_INLINE void store_lanes(T* p, AllLanes<T>, vec<T> v) {
  store(p, v);
}
template <class T>
OPFORGE_INLINE void store_lanes(T* p, int64_t n, vec<T> v) {
  store_some(p, 1, n, v);
}

// A result that no cache will keep until it is read: written past the caches, it is not read into
// them first. Only where `past` says so; who writes it calls finish_past() in the end.
template <class T, class Lanes>
OPFORGE_INLINE void store_lanes_past(bool past, T* p, Lanes n, vec<T> v) {
#if defined(__AVX__)
  if constexpr (std::is_same_v<T, float> && std::is_same_v<Lanes, AllLanes<T>>) {
    if (past) return _mm256_stream_ps(p, v);
  }
#endif
  store_lanes(p, n, v);
}
// Rows of `cols` columns, beginning at p. Elements of 16 bits take longer to compute than to write.
template <class T>
bool goes_past(const T* p, int64_t rows, int64_t cols) {
  constexpr int64_t kCaches = 8 << 20;
  return rows * cols * int64_t(sizeof(T)) >= kCaches && cols % kLanes<T> == 0 &&
         reinterpret_cast<uintptr_t>(p) % 32 == 0;
}
inline void finish_past() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}

}  // namespace opforge
