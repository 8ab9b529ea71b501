// SPDX-License-Identifier: Apache-2.0
// Launches algorithms/partial_sums.cuh for the gradients of a weight and a bias. For cuda.cu files.
#pragma once

#include <opforge/host.h>

#include <opforge/algorithms/partial_sums.cuh>

namespace opforge {

// What blocks have added up of each of `cols` columns, a row for each of `parts` blocks. Sums of
// null are not wanted; those of the bias follow those of the weight if both are there.
template <class A>
struct PartialSums {
  const A *weight, *bias;
  int64_t parts, cols;

  // In one launch if both gradients have one dtype. `overlap`: see Config::overlap_previous.
  void finish(const Tensor& grad_weight, const Tensor& grad_bias, bool overlap,
              cudaStream_t stream) const {
    const auto add_up = [&](const A* sums, const Tensor& to, const Tensor* other) {
      dispatch_all(dtype_of(to), [&]<class Out>(Type<Out>) {
        const int height = parts <= 16 ? 4 : 32;
        const dim3 grid(unsigned(ceil_div(cols, 32)), other == nullptr ? 1 : 2);
        launch(finish_sums<A, Out>, {grid, dim3(32 * height), stream, 0, overlap}, sums,
               parts * cols, int(parts), cols, mutable_data<Out>(to),
               other == nullptr ? nullptr : mutable_data<Out>(*other));
      });
    };
    const bool both =
        weight != nullptr && bias != nullptr && dtype_code(grad_weight) == dtype_code(grad_bias);
    if (weight != nullptr) add_up(weight, grad_weight, both ? &grad_bias : nullptr);
    if (bias != nullptr && !both) add_up(bias, grad_bias, nullptr);
  }
};

}  // namespace opforge
