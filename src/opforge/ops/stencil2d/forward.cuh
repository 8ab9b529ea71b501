// SPDX-License-Identifier: Apache-2.0
// The forward of stencil2d; kernel.cuh shows how it works.
#pragma once

#include "tile.cuh"

namespace opforge {

// The weighted sums for N pixels. With five weights the corners are not looked at: they may be Inf.
template <class T, int Count, int N, class A>
__device__ __forceinline__ Packed<T, N> weighted(const A (&w)[9], const A (&window)[3][N + 2]) {
  A result[N];
#pragma unroll
  for (int e = 0; e < N; ++e) {
    A sum = w[4] * window[1][e + 1];
    sum = fused(w[1], window[0][e + 1], sum);
    sum = fused(w[7], window[2][e + 1], sum);
    sum = fused(w[3], window[1][e], sum);
    sum = fused(w[5], window[1][e + 2], sum);
    if constexpr (Count == 9) {
      sum = fused(w[0], window[0][e], sum);
      sum = fused(w[2], window[0][e + 2], sum);
      sum = fused(w[6], window[2][e], sum);
      sum = fused(w[8], window[2][e + 2], sum);
    }
    result[e] = sum;
  }
  return narrow<T>(result);
}

template <class Tile, int Count>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    stencil(const StencilParams<typename Tile::T> p) {
  using T = typename Tile::T;
  using A = compute_t<T>;
  constexpr int N = Tile::N;
  Tile& tile = shared<Tile>();
  const Place place = Place::of<Tile>(p);
  const Image<T> x{p.x + place.plane * p.x_plane, p.x_row, p.height, p.width};
  tile.load(x, place, p.boundary, narrow<T>(A(p.fill)));
  A w[9];
  p.template get_weights<Count>(w);
  __syncthreads();

  T* const out = place.in<N>(p.out, p);
  tile.walk(place, [&](int r, const T*, const A(&window)[3][N + 2]) {
    if (r >= place.rows) return;
    store<N>(out + r * p.width, weighted<T, Count, N>(w, window));
  });
}

}  // namespace opforge
