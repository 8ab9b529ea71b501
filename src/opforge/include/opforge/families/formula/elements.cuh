// SPDX-License-Identifier: Apache-2.0
// Several results for every element, from inputs of any strides. Includes no torch header.
//
// The outputs are dense and alike, so a thread makes the vectors of all of them at one flat index.
// An input laid out like them is read in vectors as well. Any other is read where the layout says:
// at once where a vector's elements lie side by side or are one and the same.
#pragma once

#include <opforge/families/formula/values.h>

#include <opforge/algorithms/elementwise.cuh>
#include <opforge/families/formula/device.cuh>

namespace opforge {

template <class T, int Inputs, int Outputs, class Index>
struct ElementsParams {
  T* out[Outputs];
  const T* in[Inputs];
  bool dense[Inputs];  // laid out like the outputs
  Index count;
  Walk<Index, Inputs + 1> walk;  // operand 0 is an output
};

namespace detail {

// Elements [first, first + N) of input k.
template <int N, class T, int Inputs, int Outputs, class Index>
__device__ __forceinline__ void gather_input(const ElementsParams<T, Inputs, Outputs, Index>& p,
                                             int k, Index first, compute_t<T> (&result)[N]) {
  if (p.dense[k]) {
    if (gather_vector(p.in[k] + first, result)) return;
#pragma unroll
    for (int e = 0; e < N; ++e) result[e] = widen(p.in[k][first + e]);
    return;
  }
  Index inner;
  const T* address = p.in[k] + p.walk.offset(k + 1, first, inner);
  const int64_t step = p.walk.rank == 0 ? 0 : p.walk.stride[k + 1][0];
  const Index left = p.walk.rank == 0 ? Index(N) : p.walk.size[0].divisor - inner;
  if (left >= Index(N) && step == 0) return fill(result, widen(*address));
  if (left >= Index(N) && step == 1 && gather_vector(address, result)) return;
#pragma unroll
  for (int e = 0; e < N; ++e) {
    result[e] = widen(p.in[k][p.walk.offset(k + 1, first + e, inner)]);
  }
}

template <int N, class T, int Inputs, int Outputs, class Index, class F>
__device__ __forceinline__ void make_results(const ElementsParams<T, Inputs, Outputs, Index>& p,
                                             const F& f, Index first) {
  using A = compute_t<T>;
  A x[Inputs][N], y[Outputs][N];
#pragma unroll
  for (int k = 0; k < Inputs; ++k) gather_input(p, k, first, x[k]);
#pragma unroll
  for (int e = 0; e < N; ++e) {
    const Values<A, Outputs> made = [&]<size_t... K>(std::index_sequence<K...>) {
      return Values<A, Outputs>{f(x[K][e]...)};
    }(std::make_index_sequence<Inputs>());
#pragma unroll
    for (int k = 0; k < Outputs; ++k) y[k][e] = made[k];
  }
#pragma unroll
  for (int k = 0; k < Outputs; ++k) store<N>(p.out[k] + first, narrow<T>(y[k]));
}

}  // namespace detail

template <int N, class T, int Inputs, int Outputs, class Index, class F>
__global__ void __launch_bounds__(256)
    elements_kernel(const ElementsParams<T, Inputs, Outputs, Index> p, const F f) {
  const Index first = (Index(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (first >= p.count) return;
  if (p.count - first >= N) {
    detail::make_results<N>(p, f, first);
  } else {
    for (Index i = first; i < p.count; ++i) detail::make_results<1>(p, f, i);
  }
}

namespace detail {

template <class Index, class T, int Inputs, int Outputs, class F>
void elements_indexed(const Layout<Inputs + 1>& layout, const std::array<T*, Outputs>& out,
                      const std::array<const T*, Inputs>& in, const F& f, cudaStream_t stream) {
  ElementsParams<T, Inputs, Outputs, Index> p;
  p.count = Index(layout.count());
  p.walk = Walk<Index, Inputs + 1>(layout);
  bool vectors = tuning.vec != 1;
  for (int k = 0; k < Outputs; ++k) {
    p.out[k] = out[k];
    vectors = vectors && misalignment(out[k]) == 0;
  }
  for (int k = 0; k < Inputs; ++k) {
    const int64_t* stride = layout.stride[k + 1];
    p.in[k] = in[k];
    p.dense[k] = std::equal(stride, stride + layout.rank, layout.stride[0]);
  }
  const auto run = [&]<int N>(Width<N>) {
    constexpr int kBlock = 256;
    const int64_t blocks = ceil_div(layout.count(), int64_t(kBlock) * N);
    launch(elements_kernel<N, T, Inputs, Outputs, Index, F>,
           {dim3(unsigned(blocks)), dim3(kBlock), stream}, p, f);
  };
  vectors ? run(Width<kVec<T>>{}) : run(Width<1>{});
}

}  // namespace detail

// The outputs are dense and laid out as operand 0 of the layout. f makes a number, or Values.
template <class T, int Inputs, int Outputs, class F>
void elements(const Layout<Inputs + 1>& layout, const std::array<T*, Outputs>& out,
              const std::array<const T*, Inputs>& in, const F& f, cudaStream_t stream) {
  if (layout.count() == 0) return;
  // The last block may index past the end, so stay well below what 32 bits hold.
  if (layout.count() < (int64_t(1) << 31) - (1 << 20)) {
    detail::elements_indexed<uint32_t, T, Inputs, Outputs>(layout, out, in, f, stream);
  } else {  // unreached: the simulator has no time for 2^31 elements; a GPU checks them
    detail::elements_indexed<uint64_t, T, Inputs, Outputs>(layout, out, in, f, stream);
  }
}

}  // namespace opforge
