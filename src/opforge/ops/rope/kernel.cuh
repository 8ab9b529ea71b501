// SPDX-License-Identifier: Apache-2.0
// rope rotates pairs of elements of q and k by the angle of their token and pair.
//
//   moves     reads q and k once and writes them once: the floor is a copy. All heads of a token
//             share a row of cos and sin, which comes from the caches.
//   computes  4 multiplications and 2 additions for a pair.
//
// The kernel runs over slots. A slot belongs to one thread and one head of one token. A slot that
// rotates has N pairs: it loads two vectors, rotates element by element, and stores both. A slot
// that copies has N elements beyond the rotary dim. No thread reads what another one wrote; there
// are no sums.
//
//   a head of q or k, half split: |  a a a a  |  b b b b  |  copied  |
//                    interleaved: |  a b a b  |  a b a b  |  copied  |
//
//   Drawn for four pairs (a, b), which are one slot of N = 4.
//
// `half`, half of the rotary dim, is the number of pairs. The first half / N slots of a head
// rotate, the other (dim - 2 half) / N copy. N is the number of elements in a 16-byte vector. Where
// operands are not aligned, or N does not divide half and dim, N is 1.
#pragma once

#include <opforge/core/index.h>
#include <opforge/core/launch.h>
#include <opforge/core/vec.h>

namespace opforge {

// q, or k.
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
  const C *cos, *sin;              // (table_rows, half)
  int64_t cos_stride, sin_stride;  // of rows
  int64_t table_rows;
  int half, dim;             // pairs and elements of a head
  const int64_t* positions;  // or null: 0, 1, ...
  int64_t position_batch_stride, position_token_stride;
  Divider<Index> slots, heads, seq;  // slots of a head, heads of q and k together, tokens in seq
  Index count;                       // of all slots
  bool interleaved, inverse;         // inverse: by the negative angle, for the backward
};

template <class T, class Index>
struct Slot {
  const T* in;  // the first element of the head
  T* out;
  Index batch;
  int64_t seq_index;  // of the token in its batch
  int index;          // of the slot in its head
};

// Slot i of all: the slots of a head come one after the other, then the heads of a token, those of
// q before those of k, then the tokens.
template <class T, class C, class Index>
__device__ __forceinline__ Slot<T, Index> find_slot(const RopeParams<T, C, Index>& p, Index i) {
  const Index flat_head = p.slots.divide(i), token = p.heads.divide(flat_head);
  const Index batch = p.seq.divide(token);
  const int slot = int(i - flat_head * p.slots.divisor);
  int head = int(flat_head - token * p.heads.divisor);
  const int64_t seq_index = token - batch * p.seq.divisor;
  const bool is_key = head >= p.q.heads;
  const RopeSide<T>& side = is_key ? p.k : p.q;
  head -= is_key ? p.q.heads : 0;
  const T* in = side.in + int64_t(batch) * side.batch_stride + seq_index * side.token_stride +
                head * side.head_stride;
  T* out = side.out + (int64_t(token) * side.heads + head) * p.dim;
  return {in, out, batch, seq_index, slot};
}

// Reads N numbers of a table. A float32 table has vectors of 4, so N = 8 takes two loads.
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

// cos and sin of a slot's pairs; NaN if its position is not in the tables.
template <int N, class A, class T, class C, class Index>
__device__ __forceinline__ void read_angles(const RopeParams<T, C, Index>& p,
                                            const Slot<T, Index>& slot, int pair, A (&cos)[N],
                                            A (&sin)[N]) {
  const int64_t position = p.positions == nullptr
                               ? slot.seq_index
                               : p.positions[int64_t(slot.batch) * p.position_batch_stride +
                                             slot.seq_index * p.position_token_stride];
  const bool valid = position >= 0 && position < p.table_rows;
  const int64_t row = valid ? position : 0;
  read_table<N>(p.cos + row * p.cos_stride + pair, cos);
  read_table<N>(p.sin + row * p.sin_stride + pair, sin);
  const A nan = A(__int_as_float(0x7fc00000));
#pragma unroll
  for (int e = 0; e < N; ++e) {
    cos[e] = valid ? cos[e] : nan;  // enough: both results of a pair take cos
    sin[e] = p.inverse ? -sin[e] : sin[e];
  }
}

template <class T, class A>
__device__ __forceinline__ void rotate_pair(T& a, T& b, A cos, A sin) {
  const A x = widen(a), y = widen(b);
  a = narrow<T>(fma(x, cos, -(y * sin)));
  b = narrow<T>(fma(y, cos, x * sin));
}

// A block has 256 threads by default, and at most this many. The launch bounds keep a thread at 40
// registers, 48 without them: three blocks of 512, or six of 256, fit a multiprocessor.
constexpr int kMaxRopeBlock = 512;

template <int N, class T, class C, class Index>
__global__ void __launch_bounds__(kMaxRopeBlock, 3) rotate_slots(const RopeParams<T, C, Index> p) {
  using A = compute_t<T>;
  const Index i = Index(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= p.count) return;
  const Slot<T, Index> slot = find_slot(p, i);
  const int pair = slot.index * N;  // the first of its N
  if (pair >= p.half) {
    // A slot that copies, from element 2 half + (pair - half) on: pairs take two elements each.
    store<N>(slot.out + p.half + pair, load<N>(slot.in + p.half + pair));
    return;
  }
  const int first = p.interleaved ? 2 * pair : pair;
  const int second = p.interleaved ? first + N : pair + p.half;
  Vec<T, N> low = load<N>(slot.in + first), high = load<N>(slot.in + second);
  A cos[N], sin[N];
  read_angles(p, slot, pair, cos, sin);
  if (p.interleaved) {
    const auto element = [&](int j) -> T& { return j < N ? low.value[j] : high.value[j - N]; };
#pragma unroll
    for (int e = 0; e < N; ++e) rotate_pair(element(2 * e), element(2 * e + 1), cos[e], sin[e]);
  } else {
#pragma unroll
    for (int e = 0; e < N; ++e) rotate_pair(low.value[e], high.value[e], cos[e], sin[e]);
  }
  store<N>(slot.out + first, low);
  store<N>(slot.out + second, high);
}

}  // namespace opforge
