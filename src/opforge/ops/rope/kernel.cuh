// SPDX-License-Identifier: Apache-2.0
// rope reads q and k and writes them: the floor is a copy. All heads of a token share a row of cos
// and sin, which comes from the caches. A thread turns as many pairs as a 16-byte vector has
// elements: two vectors in, two out.
#pragma once

#include <opforge/core/index.h>
#include <opforge/core/launch.h>
#include <opforge/core/vec.h>

namespace opforge {

template <class T>
struct RopeSide {
  const T* in;
  T* out;                                           // contiguous
  int64_t batch_stride, token_stride, head_stride;  // of in
  int heads;
};

template <class T, class C, class Index>
struct RopeParams {
  RopeSide<T> q, k;
  const C *cos, *sin;
  int64_t cos_stride, sin_stride;  // of rows
  int64_t table_rows;
  int half, dim;
  const int64_t* positions;  // or null: 0, 1, ...
  int64_t position_batch, position_token;
  // A head is so many slots: first the pairs, then what is copied.
  Divider<Index> slots, heads, seq;
  Index count;
  bool interleaved, back;
};

// N numbers of a table, in vectors where they are longer than one.
template <int N, class A, class C>
__device__ __forceinline__ void read_table(const C* from, A (&to)[N]) {
  constexpr int M = N < kVec<C> ? N : kVec<C>;
#pragma unroll
  for (int i = 0; i < N; i += M) {
    const Vec<C, M> v = load<M>(from + i);
#pragma unroll
    for (int e = 0; e < M; ++e) to[i + e] = A(widen(v.value[e]));
  }
}

template <class T, class A>
__device__ __forceinline__ void turn(T& a, T& b, A cos, A sin) {
  const A x = widen(a), y = widen(b);
  a = narrow<T>(fma(x, cos, -(y * sin)));
  b = narrow<T>(fma(y, cos, x * sin));
}

// Three blocks of 512 threads per multiprocessor: 40 registers. What is left to itself takes 48.
constexpr int kRopeBlock = 512;

template <int N, class T, class C, class Index>
__global__ void __launch_bounds__(kRopeBlock, 3) rope(const RopeParams<T, C, Index> p) {
  using A = compute_t<T>;
  const Index i = Index(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= p.count) return;
  const Index of_head = p.slots.divide(i), token = p.heads.divide(of_head);
  const Index batch = p.seq.divide(token);
  const int slot = int(i - of_head * p.slots.divisor);
  int head = int(of_head - token * p.heads.divisor);
  const int64_t in_seq = token - batch * p.seq.divisor;
  const bool is_key = head >= p.q.heads;
  const RopeSide<T>& side = is_key ? p.k : p.q;
  head -= is_key ? p.q.heads : 0;
  const T* in = side.in + int64_t(batch) * side.batch_stride + in_seq * side.token_stride +
                head * side.head_stride;
  T* out = side.out + (int64_t(token) * side.heads + head) * p.dim;

  const int pair = slot * N;
  if (pair >= p.half) {  // beyond the rotary dim
    store<N>(out + p.half + pair, load<N>(in + p.half + pair));
    return;
  }
  const int first = p.interleaved ? 2 * pair : pair;
  const int second = p.interleaved ? first + N : pair + p.half;
  Vec<T, N> low = load<N>(in + first), high = load<N>(in + second);
  const int64_t position =
      p.positions == nullptr
          ? in_seq
          : p.positions[int64_t(batch) * p.position_batch + in_seq * p.position_token];
  const bool valid = position >= 0 && position < p.table_rows;
  const int64_t row = valid ? position : 0;
  A cos[N], sin[N];
  read_table<N>(p.cos + row * p.cos_stride + pair, cos);
  read_table<N>(p.sin + row * p.sin_stride + pair, sin);
  const A nan = A(__int_as_float(0x7fc00000));
#pragma unroll
  for (int e = 0; e < N; ++e) {
    cos[e] = valid ? cos[e] : nan;
    sin[e] = p.back ? -sin[e] : sin[e];
  }
  if (p.interleaved) {
    const auto element = [&](int j) -> T& { return j < N ? low.value[j] : high.value[j - N]; };
#pragma unroll
    for (int e = 0; e < N; ++e) turn(element(2 * e), element(2 * e + 1), cos[e], sin[e]);
  } else {
#pragma unroll
    for (int e = 0; e < N; ++e) turn(low.value[e], high.value[e], cos[e], sin[e]);
  }
  store<N>(out + first, low);
  store<N>(out + second, high);
}

}  // namespace opforge
