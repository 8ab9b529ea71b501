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

// For a result that no cache can keep until it is read. If `streams`, it is written to memory
// without being read into the caches first. Afterwards, each thread calls finish_streaming().
template <class T, class Lanes>
OPFORGE_INLINE void stream_lanes(bool streams, T* p, Lanes n, vec<T> v) {
#if defined(__AVX__)
  if constexpr (std::is_same_v<T, float> && std::is_same_v<Lanes, AllLanes<T>>) {
    if (streams) return _mm256_stream_ps(p, v);
  }
#endif
  store_lanes(p, n, v);
}
// Whether to stream rows of `cols` columns that begin at p. Elements of 16 bits take longer to
// compute than to write.
template <class T>
bool should_stream(const T* p, int64_t rows, int64_t cols) {
  constexpr int64_t kCaches = 8 << 20;
  return rows * cols * int64_t(sizeof(T)) >= kCaches && cols % kLanes<T> == 0 &&
         reinterpret_cast<uintptr_t>(p) % 32 == 0;
}
inline void finish_streaming() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}

}  // namespace opforge
