// SPDX-License-Identifier: Apache-2.0
// y = f(a, b, ...) for every element, any strides, at the speed of a copy. Includes no torch
// header.
//
// The output is dense, so it is walked in memory order and its offset is the flat index. An input
// laid out like it is dense too; any other finds its offset from the index. One thread makes one
// 16-byte vector and exits: on an H200 that is as fast as cudaMemcpy, while grid-stride loops,
// several vectors per thread and streaming cache hints each cost 2 to 10%.
#pragma once

#include <opforge/core/index.h>
#include <opforge/core/launch.h>
#include <opforge/core/vec.h>

#include <algorithm>
#include <array>
#include <concepts>
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

// How the last input is read; all others are dense.
enum class Last {
  dense,
  repeats,  // one row for all rows of the output: a bias
  rows,     // a row for each: adjacent elements (a matrix of a batch), or one value (a column)
};

// Two blocks of 1024 threads per multiprocessor: 32 registers, so that all 2048 threads fit. A
// quarter fewer threads cost a two-input bf16 op 6%.
constexpr int kMaxBlock = 1024;
constexpr int blocks_per_multiprocessor(Last last) { return last == Last::rows ? 1 : 2; }

namespace detail {

template <class F>
struct Anywhere {
  const F& f;

  template <class... A>
  __device__ __forceinline__ auto operator()(int, A... x) const {
    return f(x...);
  }
};

// What is applied to the N elements from `first` on: f, or what f has for them.
template <int N, class F>
__device__ __forceinline__ auto at(const F& f, int64_t first) {
  if constexpr (requires { f.template at<N>(first); }) {
    return f.template at<N>(first);
  } else {
    return Anywhere<F>{f};
  }
}

template <class T, int Inputs, class F, size_t... K>
__device__ __forceinline__ T apply(const F& f, int e, const compute_t<T> (&x)[Inputs],
                                   std::index_sequence<K...>) {
  return narrow<T>(f(e, x[K]...));
}

// N elements from `address` on, as one vector where that is possible.
template <int N, class T>
__device__ __forceinline__ bool gather_vector(const T* address, compute_t<T> (&result)[N]) {
  if (reinterpret_cast<uintptr_t>(address) % sizeof(Vec<T, N>) != 0) return false;
  const Vec<T, N> v = load<N>(address);
#pragma unroll
  for (int e = 0; e < N; ++e) result[e] = widen(v.value[e]);
  return true;
}

// Elements [first, first + N) of a row that repeats.
template <int N, class T, class Index>
__device__ __forceinline__ void gather_repeated(const T* row, const Divider<Index>& length,
                                                Index first, compute_t<T> (&result)[N]) {
  Index inner = first - length.divide(first) * length.divisor;
  if (inner + N <= length.divisor && gather_vector(row + inner, result)) return;
#pragma unroll
  for (int e = 0; e < N; ++e) {
    result[e] = widen(row[inner]);
    if (++inner == length.divisor) inner = 0;
  }
}

// Elements [first, first + N) of rows at least N long: there is one step to a next row at most.
template <int N, class T, int Inputs, class Index>
__device__ __forceinline__ void gather_rows(const ElementwiseParams<T, Inputs, Index>& p,
                                            Index first, compute_t<T> (&result)[N]) {
  constexpr int k = Inputs - 1;
  Index inner, start;
  const T* address = p.in[k] + p.walk.offset(k + 1, first, inner);
  const Index length = p.walk.size[0].divisor;
  const int left = length - inner < N ? int(length - inner) : N;  // of this row
  const bool neighbours = p.walk.stride[k + 1][0] == 1;           // or one value per row
  if (neighbours && left >= N && gather_vector(address, result)) return;
  const T* next = left < N ? p.in[k] + p.walk.offset(k + 1, first + left, start) : address;
  if (neighbours) {
#pragma unroll
    for (int e = 0; e < N; ++e) {
      result[e] = widen((e < left ? address : next - left)[e]);
    }
  } else {
    const compute_t<T> here = widen(*address), there = widen(*next);
#pragma unroll
    for (int e = 0; e < N; ++e) result[e] = e < left ? here : there;
  }
}

// Elements [first, first + N) of the output.
template <Last last, int N, class T, int Inputs, class Index, class F>
__device__ __forceinline__ void make_elements(const ElementwiseParams<T, Inputs, Index>& p,
                                              const F& f, Index first) {
  constexpr int kDense = last == Last::dense ? Inputs : Inputs - 1;
  using A = compute_t<T>;
  Vec<T, N> in[Inputs];
#pragma unroll
  for (int k = 0; k < kDense; ++k) in[k] = load<N>(p.in[k] + first);
  A other[N];
  if constexpr (last == Last::repeats) {
    gather_repeated<N>(p.in[Inputs - 1], p.walk.size[0], first, other);
  } else if constexpr (last == Last::rows) {
    gather_rows<N>(p, first, other);
  }
  const auto here = at<N>(f, int64_t(first));
  Vec<T, N> out;
#pragma unroll
  for (int e = 0; e < N; ++e) {
    A x[Inputs];
#pragma unroll
    for (int k = 0; k < kDense; ++k) x[k] = widen(in[k].value[e]);
    if constexpr (last != Last::dense) x[Inputs - 1] = other[e];
    out.value[e] = apply<T>(here, e, x, std::make_index_sequence<Inputs>{});
  }
  store<N>(p.out + first, out);
}

}  // namespace detail

template <Last last, class T, int Inputs, class Index, class F>
__global__ void __launch_bounds__(kMaxBlock, blocks_per_multiprocessor(last))
    elementwise_vectors(const ElementwiseParams<T, Inputs, Index> p, const F f) {
  constexpr int N = kVec<T>;
  const Index first = (Index(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (first >= p.count) return;
  if (p.count - first >= N) {
    detail::make_elements<last, N>(p, f, first);
  } else {  // apart from the rest, so that vectors stay whole in registers
    for (Index i = first; i < p.count; ++i) detail::make_elements<last, 1>(p, f, i);
  }
}

// For operands that allow no vectors (misaligned, transposed): neighbouring threads take
// neighbouring elements, each thread several of them so that enough loads are in flight: as many as
// the registers hold.
template <class T, int Inputs, class Index, class F>
__global__ void __launch_bounds__(kMaxBlock, 1)
    elementwise_elements(const ElementwiseParams<T, Inputs, Index> p, const F f) {
  constexpr int N = kVec<T>, kTogether = Inputs > 2 ? N / 2 : N;
  Index first = Index(blockIdx.x) * blockDim.x * N + threadIdx.x;
#pragma unroll 1
  for (int part = 0; part < N; part += kTogether) {
    compute_t<T> x[kTogether][Inputs];
#pragma unroll
    for (int e = 0; e < kTogether; ++e) {
      const Index i = first + Index(e) * blockDim.x;
      if (i < p.count) {
#pragma unroll
        for (int k = 0; k < Inputs; ++k) {
          Index inner;
          x[e][k] = widen(p.in[k][p.dense[k] ? int64_t(i) : p.walk.offset(k + 1, i, inner)]);
        }
      }
    }
#pragma unroll
    for (int e = 0; e < kTogether; ++e) {
      const Index i = first + Index(e) * blockDim.x;
      if (i >= p.count) return;
      const auto here = detail::at<1>(f, int64_t(i));
      p.out[i] = detail::apply<T>(here, 0, x[e], std::make_index_sequence<Inputs>{});
    }
    first += Index(kTogether) * blockDim.x;
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
  const Tuning chosen = tuning;
  bool vectors = misalignment(out) == 0 && chosen.vec != 1;
  Last last = Last::dense;
  for (int k = 0; k < Inputs; ++k) {
    const int64_t* stride = layout.stride[k + 1];
    p.in[k] = in[k];
    p.dense[k] = std::equal(stride, stride + layout.rank, layout.stride[0]);
    if (p.dense[k]) {
      vectors = vectors && misalignment(in[k]) == 0;
    } else {
      vectors = vectors && k > 0 && k == Inputs - 1 && stride[0] <= 1 && layout.size[0] >= kVec<T>;
      last = layout.rank == 2 && stride[0] == 1 && stride[1] == 0 ? Last::repeats : Last::rows;
    }
  }
  // 128 threads are 2% better where a row repeats, 256 elsewhere.
  const int block = chosen.block ? chosen.block : last == Last::repeats ? 128 : 256;
  const int64_t blocks = ceil_div(layout.count(), int64_t(block) * kVec<T>);
  auto kernel = elementwise_elements<T, Inputs, Index, F>;
  if (vectors && last == Last::dense)
    kernel = elementwise_vectors<Last::dense, T, Inputs, Index, F>;
  if constexpr (Inputs > 1) {
    if (vectors && last == Last::repeats) {
      kernel = elementwise_vectors<Last::repeats, T, Inputs, Index, F>;
    } else if (vectors && last == Last::rows) {
      kernel = elementwise_vectors<Last::rows, T, Inputs, Index, F>;
    }
  }
  launch(kernel, {dim3(unsigned(blocks)), dim3(block), stream}, p, f);
}

}  // namespace detail

namespace detail {

template <class F, class A, size_t... K>
constexpr bool takes_values(std::index_sequence<K...>) {
  return requires(const F& f, A x) {
    { f((void(K), x)...) } -> std::convertible_to<A>;
  };
}

// As above, for what f.at<N>(first) returns.
template <class F, class A, size_t... K>
constexpr bool takes_places(std::index_sequence<K...>) {
  return requires(const F& f, A x) {
    { f.template at<1>(int64_t())(0, (void(K), x)...) } -> std::convertible_to<A>;
  };
}

}  // namespace detail

// A function of one element of each input, in the type they are computed in:
//
//   struct Add {
//     template <class A>
//     __device__ A operator()(A a, A b) const { return a + b; }
//   };
//
// Or one that has to know which elements it gets. Its at<N>(first) is called once for N neighbours
// in memory, and what that returns with 0 to N - 1 before the values:
//
//   struct Index {
//     struct At {
//       int64_t first;
//       template <class A>
//       __device__ A operator()(int e, A) const { return A(first + e); }
//     };
//     template <int N>
//     __device__ At at(int64_t first) const { return {first}; }
//   };
template <class F, class T, int Inputs>
concept ElementFunction =
    detail::takes_values<F, compute_t<T>>(std::make_index_sequence<Inputs>{}) ||
    detail::takes_places<F, compute_t<T>>(std::make_index_sequence<Inputs>{});

// `layout` has the output as operand 0, dense.
template <class T, int Inputs, class F>
  requires ElementFunction<F, T, Inputs>
void elementwise(const Layout<Inputs + 1>& layout, T* out, const std::array<const T*, Inputs>& in,
                 const F& f, cudaStream_t stream) {
  if (layout.count() == 0) return;
  // The last block may index past the end, so stay well below what 32 bits hold.
  if (layout.count() < (int64_t(1) << 31) - (1 << 20)) {
    detail::elementwise_indexed<uint32_t, T, Inputs>(layout, out, in, f, stream);
  } else {  // unreached: the simulator has no time for 2^31 elements; a GPU checks them
    detail::elementwise_indexed<uint64_t, T, Inputs>(layout, out, in, f, stream);
  }
}

}  // namespace opforge
