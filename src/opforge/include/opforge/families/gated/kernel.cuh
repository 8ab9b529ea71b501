// SPDX-License-Identifier: Apache-2.0
// y = act(gate) * up and its gradients, any strides. Includes no torch header.
//
//   forward   moves: reads two tensors and writes one. computes: the activation and a product.
//   backward  moves: reads three and writes two. computes: the activation again, which costs less
//             than to read it, its gradient and three products. Nothing but the inputs is saved.
//
// The floor of both is a copy of those bytes. Three kernels, by the layout of the operands:
//
//   gated_vectors    aligned vectors: one thread makes one 16-byte vector of each output, as in
//                    algorithms/elementwise.cuh
//   gated_unaligned  rows of which one operand is unaligned (the halves of a packed row of odd
//                    length): one thread makes a vector of one output
//   gated_elements   what has no rows: element by element
#pragma once

#include <opforge/core/index.h>
#include <opforge/core/launch.h>
#include <opforge/core/unaligned.h>
#include <opforge/core/vec.h>

#include <array>
#include <concepts>
#include <opforge/families/activations/device.cuh>
#include <type_traits>

namespace opforge {

template <class T, int Outputs, int Inputs, class Index>
struct GatedParams {
  T* out[Outputs];
  const T* in[Inputs];
  Index count;
  Walk<Index, Outputs + Inputs> walk;  // outputs first

  // The offsets of all operands at flat index i: one division per dimension but the last. Rank: how
  // many dimensions there are, where elements are neighbours in dimension 0; 0 if neither is known.
  template <int Rank = 0>
  __device__ __forceinline__ void locate(Index i, int64_t (&offset)[Outputs + Inputs]) const {
    const int rank = Rank ? Rank : walk.rank;
#pragma unroll
    for (int k = 0; k < Outputs + Inputs; ++k) offset[k] = 0;
#pragma unroll(Rank ? Rank : 1)
    for (int d = 0; d < rank; ++d) {
      const Index rest = d + 1 < rank ? walk.size[d].divide(i) : 0;
      const int64_t inner = i - rest * walk.size[d].divisor;
#pragma unroll
      for (int k = 0; k < Outputs + Inputs; ++k) {
        // Vectors have neighbours in dimension 0.
        offset[k] += Rank > 0 && d == 0 ? inner : inner * walk.stride[k][d];
      }
      i = rest;
    }
  }
};

// An activation of numbers A. gradient() returns the gradient of x, given `passed`, that of
// value(x), and sets `value` as well:
//
//   struct Square {
//     __device__ float value(float x) const { return x * x; }
//     __device__ float gradient(float x, float passed, float& value) const {
//       value = x * x;
//       return 2 * x * passed;
//     }
//   };
template <class Act, class A>
concept GateActivation = requires(const Act& act, A x, A& value) {
  { act.value(x) } -> std::convertible_to<A>;
  { act.gradient(x, x, value) } -> std::convertible_to<A>;
};

template <class Act>
struct GatedForward {
  static constexpr int kNeeds[] = {2};  // so many of the first inputs, by output
  Act act;

  template <class A>
  __device__ __forceinline__ void operator()(const A (&in)[2], A (&y)[1]) const {
    y[0] = act.value(in[0]) * in[1];
  }
};

template <class Act>
struct GatedBackward {
  static constexpr int kNeeds[] = {3, 2};
  Act act;

  template <class A>
  __device__ __forceinline__ void operator()(const A (&in)[3], A (&grad)[2]) const {
    A value;
    grad[0] = act.gradient(in[1], in[0] * in[2], value);
    grad[1] = in[0] * value;
  }
};

// N elements of every operand, at these offsets.
template <int N, class T, int Outputs, int Inputs, class Index, class F>
__device__ __forceinline__ void gate_vector(const GatedParams<T, Outputs, Inputs, Index>& p,
                                            const F& f, const int64_t (&at)[Outputs + Inputs]) {
  using A = compute_t<T>;
  Packed<T, N> in[Inputs];
#pragma unroll
  for (int k = 0; k < Inputs; ++k) in[k] = load_packed<N>(p.in[k] + at[Outputs + k]);
  A x[Inputs][N], y[Outputs][N];
#pragma unroll
  for (int k = 0; k < Inputs; ++k) widen(in[k], x[k]);
#pragma unroll
  for (int e = 0; e < N; ++e) {
    A from[Inputs], to[Outputs];
#pragma unroll
    for (int k = 0; k < Inputs; ++k) from[k] = x[k][e];
    f(from, to);
#pragma unroll
    for (int k = 0; k < Outputs; ++k) y[k][e] = to[k];
  }
#pragma unroll
  for (int k = 0; k < Outputs; ++k) store<N>(p.out[k] + at[k], narrow<T>(y[k]));
}

// Whether registers are limited so that all 2048 threads of a multiprocessor fit, see
// elementwise.cuh. Not where the kernel would then spill registers to memory, as gelu's gradient
// does at float16.
template <class F, int Rank, class T, class Index>
constexpr bool kAllThreads = Rank > 0 && sizeof(Index) == 4 && sizeof(T) < 8 &&
                             !std::is_same_v<F, GatedBackward<Gelu<half>>>;

// Of one dimension, operands are dense; of two, rows, such as the halves of packed ones.
template <int Rank, class T, int Outputs, int Inputs, class Index, class F>
__global__ void __launch_bounds__(1024, kAllThreads<F, Rank, T, Index> ? 2 : 1)
    gated_vectors(const GatedParams<T, Outputs, Inputs, Index> p, const F f) {
  constexpr int N = kVec<T>;
  const Index first = (Index(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (first >= p.count) return;
  int64_t at[Outputs + Inputs];
  if (p.count - first >= N) {
    p.template locate<Rank>(first, at);
    gate_vector<N>(p, f, at);
  } else {  // only of one dimension
    for (Index i = first; i < p.count; ++i) {
      p.template locate<1>(i, at);
      gate_vector<1>(p, f, at);
    }
  }
}

// The elements of one output that share one of its 16-byte vectors: those of its row, which is
// all of them but at the ends. The inputs begin anywhere.
template <int K, class T, int Outputs, int Inputs, class Index, class F>
__device__ __forceinline__ void gate_unaligned(const GatedParams<T, Outputs, Inputs, Index>& p,
                                               const F& f, Index row, Index vector) {
  using A = compute_t<T>;
  using Col = std::make_signed_t<Index>;
  constexpr int N = kVec<T>, kNeeds = F::kNeeds[K];
  T* const out = p.out[K] + row * p.walk.stride[K][1];
  const Col cols = Col(p.walk.size[0].divisor), col = Col(vector * N) - misalignment(out);
  const auto exists = [&](int e) { return Index(col + e) < Index(cols); };
  const bool whole = exists(0) && exists(N - 1);
  const T* in[kNeeds];
  bool fits = whole;
#pragma unroll
  for (int k = 0; k < kNeeds; ++k) {
    in[k] = p.in[k] + row * p.walk.stride[Outputs + k][1] + col;
    fits &= Unaligned<T, N>::fits(in[k], col, cols);
  }
  Packed<T, N> from[kNeeds];
  if (fits) {
    Unaligned<T, N> loaded[kNeeds];
#pragma unroll
    for (int k = 0; k < kNeeds; ++k) loaded[k] = Unaligned<T, N>(in[k]);
#pragma unroll
    for (int k = 0; k < kNeeds; ++k) from[k] = loaded[k].together();
  } else {
#pragma unroll
    for (int k = 0; k < kNeeds; ++k) {
      Vec<T, N> elements = {};
#pragma unroll
      for (int e = 0; e < N; ++e) {
        if (exists(e)) elements.value[e] = in[k][e];
      }
      from[k] = elements;
    }
  }
  A x[kNeeds][N], y[N];
#pragma unroll
  for (int k = 0; k < kNeeds; ++k) widen(from[k], x[k]);
#pragma unroll
  for (int e = 0; e < N; ++e) {
    A values[Inputs] = {}, results[Outputs];
#pragma unroll
    for (int k = 0; k < kNeeds; ++k) values[k] = x[k][e];
    f(values, results);
    y[e] = results[K];
  }
  if (whole) return store<N>(out + col, narrow<T>(y));
#pragma unroll
  for (int e = 0; e < N; ++e) {
    if (exists(e)) out[col + e] = narrow<T>(y[e]);
  }
}

// Two outputs are unaligned to each other, too. Each has half of a block's threads: what both
// halves read comes from memory once. A thread that made both would have to store one of them in
// pieces.
constexpr int kUnalignedThreads = 256;

// `vectors`: that a row of an output may have a share in. As many threads to a multiprocessor as
// have the registers for all loads to be under way before one is waited for.
template <class T, int Outputs, int Inputs, class Index, class F>
__global__ void __launch_bounds__(kUnalignedThreads, Outputs == 1 && sizeof(T) < 8 ? 8 : 6)
    gated_unaligned(const GatedParams<T, Outputs, Inputs, Index> p, const Divider<Index> vectors,
                    const F f) {
  constexpr unsigned kEach = kUnalignedThreads / Outputs;
  const Index i = Index(blockIdx.x) * kEach + threadIdx.x % kEach;
  const Index row = vectors.divide(i), vector = i - row * vectors.divisor;
  if (row >= p.walk.size[1].divisor) return;
  if (Outputs == 1 || threadIdx.x < kEach) {
    gate_unaligned<0>(p, f, row, vector);
  } else {
    gate_unaligned<Outputs - 1>(p, f, row, vector);
  }
}

// Neighbouring threads take neighbouring elements, each several so that enough loads are in flight.
constexpr int kGatedElements = 4;

template <class T, int Outputs, int Inputs, class Index, class F>
__global__ void __launch_bounds__(1024)
    gated_elements(const GatedParams<T, Outputs, Inputs, Index> p, const F f) {
  const Index first = Index(blockIdx.x) * blockDim.x * kGatedElements + threadIdx.x;
  compute_t<T> x[kGatedElements][Inputs];
  int64_t at[Outputs + Inputs];
#pragma unroll
  for (int e = 0; e < kGatedElements; ++e) {
    const Index i = first + Index(e) * blockDim.x;
    if (i >= p.count) continue;
    p.locate(i, at);
#pragma unroll
    for (int k = 0; k < Inputs; ++k) x[e][k] = widen(p.in[k][at[Outputs + k]]);
  }
#pragma unroll
  for (int e = 0; e < kGatedElements; ++e) {
    const Index i = first + Index(e) * blockDim.x;
    if (i >= p.count) continue;
    compute_t<T> y[Outputs];
    f(x[e], y);
    p.locate(i, at);  // again: remembering would take too many registers
#pragma unroll
    for (int k = 0; k < Outputs; ++k) p.out[k][at[k]] = narrow<T>(y[k]);
  }
}

namespace detail {

// Whether every operand is made of aligned vectors, none of which goes on in another row.
template <class T, int N>
bool gated_by_vectors(const Layout<N>& layout, const std::array<const T*, N>& data) {
  bool vectors = tuning.vec != 1 && (layout.rank <= 1 || layout.size[0] % kVec<T> == 0);
  for (int k = 0; k < N; ++k) {
    vectors = vectors && misalignment(data[k]) == 0;
    for (int d = 0; d < layout.rank; ++d) {
      const int64_t stride = layout.stride[k][d];
      vectors = vectors && (d == 0 ? stride == 1 : stride % kVec<T> == 0);
    }
  }
  return vectors;
}

// Whether all operands are rows, of neighbours, that are mostly whole vectors.
template <class T, int N>
bool gated_by_rows(const Layout<N>& layout) {
  bool rows = tuning.vec != 1 && layout.rank <= 2 && layout.size[0] >= 4 * kVec<T>;
  for (int k = 0; k < N; ++k) rows = rows && layout.stride[k][0] == 1;
  return rows;
}

template <class Index, class T, int Outputs, int Inputs, class F>
void gated_indexed(const Layout<Outputs + Inputs>& layout, const std::array<T*, Outputs>& out,
                   const std::array<const T*, Inputs>& in, const F& f, cudaStream_t stream) {
  GatedParams<T, Outputs, Inputs, Index> p;
  std::array<const T*, Outputs + Inputs> all;
  for (int k = 0; k < Outputs; ++k) all[k] = p.out[k] = out[k];
  for (int k = 0; k < Inputs; ++k) all[Outputs + k] = p.in[k] = in[k];
  p.count = Index(layout.count());
  p.walk = Walk<Index, Outputs + Inputs>(layout);
  const bool vectors = gated_by_vectors<T, Outputs + Inputs>(layout, all);
  if (!vectors && gated_by_rows<T>(layout)) {
    const int64_t rows = layout.rank == 2 ? layout.size[1] : 1;
    const int64_t each = ceil_div(layout.size[0] + kVec<T> - 1, kVec<T>);
    const int64_t blocks = ceil_div(rows * each, kUnalignedThreads / Outputs);
    return launch(gated_unaligned<T, Outputs, Inputs, Index, F>,
                  {dim3(unsigned(blocks)), dim3(kUnalignedThreads), stream}, p,
                  Divider<Index>(each), f);
  }
  const int asked = tuning.block, block = asked ? asked : 256;
  const int64_t per_block = int64_t(block) * (vectors ? kVec<T> : kGatedElements);
  launch(!vectors           ? gated_elements<T, Outputs, Inputs, Index, F>
         : layout.rank == 2 ? gated_vectors<2, T, Outputs, Inputs, Index, F>
         : layout.rank <= 1 ? gated_vectors<1, T, Outputs, Inputs, Index, F>
                            : gated_vectors<0, T, Outputs, Inputs, Index, F>,
         {dim3(unsigned(ceil_div(layout.count(), per_block))), dim3(block), stream}, p, f);
}

template <class T, int Outputs, int Inputs, class F>
void gated_launch(const Layout<Outputs + Inputs>& layout, const std::array<T*, Outputs>& out,
                  const std::array<const T*, Inputs>& in, const F& f, cudaStream_t stream) {
  // The last block may index past the end, so stay well below what 32 bits hold.
  const bool small = layout.count() < (int64_t(1) << 31) - (1 << 20);
  (small ? gated_indexed<uint32_t, T, Outputs, Inputs, F>
         : gated_indexed<uint64_t, T, Outputs, Inputs, F>)(layout, out, in, f, stream);
}

}  // namespace detail

template <class T, class Act>
  requires GateActivation<Act, compute_t<T>>
void gated_forward(const Layout<3>& layout, T* y, const T* gate, const T* up, const Act& act,
                   cudaStream_t stream) {
  detail::gated_launch<T, 1, 2>(layout, {y}, {gate, up}, GatedForward<Act>{act}, stream);
}

template <class T, class Act>
  requires GateActivation<Act, compute_t<T>>
void gated_backward(const Layout<5>& layout, T* grad_gate, T* grad_up, const T* grad_y,
                    const T* gate, const T* up, const Act& act, cudaStream_t stream) {
  detail::gated_launch<T, 2, 3>(layout, {grad_gate, grad_up}, {grad_y, gate, up},
                                GatedBackward<Act>{act}, stream);
}

}  // namespace opforge
