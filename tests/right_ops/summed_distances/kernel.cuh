// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/shared.h>

namespace opforge {

constexpr int kTile = 64;  // keys of a buffer, queries of a block

template <class A>
struct Buffers {
  A keys[2][kTile];
};

// While one buffer is used the other is filled: one barrier to a tile is enough.
template <class T>
__global__ void __launch_bounds__(kTile)
    summed_distances(Matrix<const T> query, Matrix<const T> key, T* y, int64_t queries,
                     int64_t keys) {
  using A = compute_t<T>;
  Buffers<A>& buffers = shared<Buffers<A>>();
  const int64_t own = int64_t(blockIdx.x) * kTile + threadIdx.x;
  const A q = own < queries ? A(widen(*query.at(own, 0))) : A(0);
  const auto fetch = [&](int64_t first) {
    const int64_t k = first + threadIdx.x;
    if (k < keys) buffers.keys[first / kTile % 2][threadIdx.x] = widen(*key.at(k, 0));
  };
  fetch(0);
  A sum = 0;
  for (int64_t first = 0; first < keys; first += kTile) {
    __syncthreads();
    fetch(first + kTile);
    const A* now = buffers.keys[first / kTile % 2];
    const int count = int(keys - first < kTile ? keys - first : kTile);
    for (int k = 0; k < count; ++k) sum += q < now[k] ? now[k] - q : q - now[k];
  }
  if (own < queries) y[own] = narrow<T>(sum);
}

}  // namespace opforge
