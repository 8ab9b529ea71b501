// SPDX-License-Identifier: Apache-2.0
// y = f(a, b, ...) for every element, any strides, at the speed of a copy. Includes no torch
// header.
//
// The output is dense, so it is walked in memory order and its offset is the flat index. An input
// laid out like it is dense too; any other finds its offset from the index. One thread makes one
// 16-byte vector and exits: on an H200 that is as fast as cudaMemcpy, while grid-stride loops,
// several vectors per thread and streaming cache hints each cost 2 to 10%.
#pragma once

#include <opforge/index.h>
#include <opforge/launch.h>
#include <opforge/vec.h>

#include <array>
#include <utility>

namespace opforge {

template <class T, int Inputs, class Index>
struct ElementwiseParams {
  T* out;
  const T* in[Inputs];
  bool dense[Inputs];
  Index count;
  Walk<Index, Inputs + 1> walk;  // operand 0 is the output
};

namespace detail {

template <class T, int Inputs, class F, size_t... K>
__device__ __forceinline__ T apply(const F& f, const T (&x)[Inputs], std::index_sequence<K...>) {
  return narrow<T>(f(widen(x[K])...));
}

// Elements [first, first + N) of input k; only the first `n` of them exist.
template <int N, class T, int Inputs, class Index>
__device__ __forceinline__ Vec<T, N> gather(const ElementwiseParams<T, Inputs, Index>& p, int k,
                                            Index first, int n) {
  Vec<T, N> result;
  if (p.dense[k]) {
    if (n == N) return load<N>(p.in[k] + first);
    for (int e = 0; e < N; ++e) {
      if (e < n) result.value[e] = p.in[k][first + e];
    }
    return result;
  }
  Index inner;
  int64_t offset = p.walk.offset(k + 1, first, inner);
  const Index length = p.walk.size[0].divisor;
  const int64_t step = p.walk.stride[k + 1][0];
  const T* address = p.in[k] + offset;
  if (n == N && inner + N <= length) {  // within one row: a vector, or one value for all
    if (step == 1 && reinterpret_cast<uintptr_t>(address) % sizeof(Vec<T, N>) == 0) {
      return load<N>(address);
    }
    if (step == 0) {
      const T value = *address;
#pragma unroll
      for (int e = 0; e < N; ++e) result.value[e] = value;
      return result;
    }
  }
#pragma unroll
  for (int e = 0; e < N; ++e) {
    if (e < n) {
      result.value[e] = p.in[k][offset];
      offset += step;
      if (++inner == length && e + 1 < n) offset = p.walk.offset(k + 1, first + e + 1, inner);
    }
  }
  return result;
}

}  // namespace detail

template <class T, int Inputs, class Index, class F>
__global__ void elementwise_vectors(const ElementwiseParams<T, Inputs, Index> p, const F f) {
  constexpr int N = kVec<T>;
  const Index first = (Index(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (first >= p.count) return;
  const int n = p.count - first < N ? int(p.count - first) : N;
  Vec<T, N> in[Inputs], out;
#pragma unroll
  for (int k = 0; k < Inputs; ++k) in[k] = detail::gather<N>(p, k, first, n);
#pragma unroll
  for (int e = 0; e < N; ++e) {
    T x[Inputs];
#pragma unroll
    for (int k = 0; k < Inputs; ++k) x[k] = in[k].value[e];
    out.value[e] = detail::apply(f, x, std::make_index_sequence<Inputs>{});
  }
  if (n == N) {
    store<N>(p.out + first, out);
  } else {
    for (int e = 0; e < N; ++e) {
      if (e < n) p.out[first + e] = out.value[e];
    }
  }
}

// For operands that allow no vectors (misaligned, transposed): neighbouring threads take
// neighbouring elements, each thread several of them so that enough loads are in flight.
template <class T, int Inputs, class Index, class F>
__global__ void elementwise_elements(const ElementwiseParams<T, Inputs, Index> p, const F f) {
  constexpr int N = kVec<T>;
  const Index first = Index(blockIdx.x) * blockDim.x * N + threadIdx.x;
  T x[N][Inputs];
#pragma unroll
  for (int e = 0; e < N; ++e) {
    const Index i = first + Index(e) * blockDim.x;
    if (i < p.count) {
#pragma unroll
      for (int k = 0; k < Inputs; ++k) {
        Index inner;
        x[e][k] = p.in[k][p.dense[k] ? int64_t(i) : p.walk.offset(k + 1, i, inner)];
      }
    }
  }
#pragma unroll
  for (int e = 0; e < N; ++e) {
    const Index i = first + Index(e) * blockDim.x;
    if (i < p.count) p.out[i] = detail::apply(f, x[e], std::make_index_sequence<Inputs>{});
  }
}

namespace detail {

template <class Index, class T, int Inputs, class F>
void elementwise_indexed(const Layout<Inputs + 1>& layout, T* out,
                         const std::array<const T*, Inputs>& in, const F& f, cudaStream_t stream) {
  ElementwiseParams<T, Inputs, Index> p;
  p.out = out;
  p.count = Index(layout.count());
  p.walk = Walk<Index, Inputs + 1>(layout);
  bool vectors = misalignment(out) == 0;
  for (int k = 0; k < Inputs; ++k) {
    p.in[k] = in[k];
    p.dense[k] = true;
    for (int d = 0; d < layout.rank; ++d) {
      p.dense[k] = p.dense[k] && layout.stride[k + 1][d] == layout.stride[0][d];
    }
    const int64_t step = layout.rank == 0 ? 1 : layout.stride[k + 1][0];
    vectors = vectors && (p.dense[k] ? misalignment(in[k]) == 0 : step == 0 || step == 1);
  }
  if (tuning.vec == 1) vectors = false;
  const int block = tuning.block ? tuning.block : 256;
  const int64_t blocks = ceil_div(layout.count(), int64_t(block) * kVec<T>);
  const auto kernel = vectors ? elementwise_vectors<T, Inputs, Index, F>
                              : elementwise_elements<T, Inputs, Index, F>;
  launch(kernel, {dim3(unsigned(blocks)), dim3(block), stream}, p, f);
}

}  // namespace detail

// `layout` has the output as operand 0, dense; `f` takes and returns the compute type.
template <class T, int Inputs, class F>
void elementwise(const Layout<Inputs + 1>& layout, T* out, const std::array<const T*, Inputs>& in,
                 const F& f, cudaStream_t stream) {
  if (layout.count() == 0) return;
  // The last block may index past the end, so stay well below what 32 bits hold.
  if (layout.count() < (int64_t(1) << 31) - (1 << 20)) {
    detail::elementwise_indexed<uint32_t, T, Inputs>(layout, out, in, f, stream);
  } else {
    detail::elementwise_indexed<uint64_t, T, Inputs>(layout, out, in, f, stream);
  }
}

}  // namespace opforge
