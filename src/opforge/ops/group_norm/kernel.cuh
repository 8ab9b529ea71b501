// SPDX-License-Identifier: Apache-2.0
// Forward reads x and writes y: the floor is a copy, at 7 operations per element (11 with a silu).
// Backward reads grad and x and writes grad_x: 1.5 copies.
//
// A sample has groups of channels, and a channel has pixels. Two layouts have kernels of their own:
//
//   planes.cuh (NCHW)   a group is one run of memory: a row of rows.cuh, with a weight per plane
//     forward           some lanes, a block or a cluster own a group and read it once. A group too
//                       long for a cluster's registers is read again for each sum and for y.
//     backward          1. a row is a plane, or a piece of one; usually a block owns it and adds
//                          up the two sums of its channel
//                       2. group_means: a few threads own a group, and add up its channels
//                       3. the same rows again: reads them once more, writes grad_x
//   pixels.cuh (NHWC)   a sample is a matrix: a row per pixel, a column per channel
//     forward           1. a block owns a chunk of pixels: the mean and squares of its channels
//                       2. group_moments: a few threads own a group, and add up channels and chunks
//                       3. a block owns a chunk again: reads it once more, writes y
//     backward          as for planes, with a chunk of pixels for a plane
//
// The gradients of weight and bias are the sums of 1., added up over samples by partial_sums.cuh.
// What is read again comes in part from the L2 cache.
#pragma once

#include <opforge/core/params.h>

#include <opforge/algorithms/rows.cuh>
#include <opforge/families/activations/device.cuh>
#include <opforge/families/norm/dots.cuh>

namespace opforge {

// Division of numbers up to `most` by one known at launch; slow only where they take over 31 bits.
struct Division {
  Divider<uint32_t> fast;
  int64_t divisor = 1;
  bool wide = false;

  Division() = default;
  Division(int64_t most, int64_t by) : divisor(by), wide(most >= int64_t(1) << 31) {
    if (!wide) fast = Divider<uint32_t>(by);
  }
  __device__ __forceinline__ int64_t divide(int64_t n) const {
    return wide ? n / divisor : int64_t(fast.divide(uint32_t(n)));
  }
};

// What a channel is scaled and shifted by.
template <class A>
struct Affine {
  A weight, bias;
};

// z = normed · weight + bias, y = z or silu(z), for elements of T.
template <class T>
struct GroupNorm {
  using A = compute_t<T>;
  Param weight, bias;
  bool silu;
  int64_t channels, pixels;  // of a sample; pixels of a channel
  Division members;          // channels of a group

  __device__ __forceinline__ Affine<A> affine(int64_t channel) const {
    A w[1] = {A(1)}, b[1] = {A(0)};
    if (weight) read<T>(weight, channel, w);
    if (bias) read<T>(bias, channel, b);
    return {w[0], b[0]};
  }
  __device__ __forceinline__ A forward(A normed, const Affine<A>& by) const {
    const A z = fma(normed, by.weight, by.bias);
    return silu ? Silu<T>{}.value(z) : z;
  }
  // The gradient of z, given that of y.
  __device__ __forceinline__ A z_gradient(A normed, const Affine<A>& by, A grad) const {
    if (!silu) return grad;
    A value;
    return Silu<T>{}.gradient(fma(normed, by.weight, by.bias), grad, value);
  }
};

// What a group's gradient takes besides its statistics: the means of weight · grad_z and of
// weight · grad_z · normed.
template <class A>
struct GroupMeans {
  A grad, inner;

  // The gradient of x. The product is rounded by itself, as in the mean: a group of one element has
  // no gradient, not even a rounding.
  __device__ __forceinline__ A gradient(A normed, A rstd, A weight, A grad_z) const {
    return fma(-normed, inner, product(weight, grad_z) - grad) * rstd;
  }
};

// For group_means and group_moments, which add up `numbers` per group. Usually groups are many and
// numbers few: then 8 threads own a group, else a warp or a block.
inline RowPlan plan_groups(int64_t groups, int64_t numbers) {
  const int lanes = numbers > kRowBlock ? kRowBlock : numbers > 8 ? kWarp : 8;
  return {groups, numbers, lanes, 1, kRowBlock, true};
}

// Turns the sums of channels into the two means of each group. A part of a sample is a piece of its
// planes, or a chunk of its pixels. Sums are [sample][part][channel].
template <class T>
__global__ void __launch_bounds__(kRowBlock)
    group_means(const RowPlan plan, const GroupNorm<T> norm, int64_t groups, int parts,
                const compute_t<T>* weight_sums, const compute_t<T>* bias_sums,
                GroupMeans<compute_t<T>>* means) {
  using A = compute_t<T>;
  const Place place(plan);
  const int64_t group = place.row;  // of all samples
  const int64_t members = norm.members.divisor, sample = group / groups;
  const int64_t first = (group - sample * groups) * members;  // channel
  Dots<A, true> total;
  await_previous();
  for (int64_t i = place.index; i < plan.cols; i += place.size) {
    const int64_t part = norm.members.divide(i), channel = first + i - part * members;
    const int64_t at = (sample * parts + part) * norm.channels + channel;
    const A weight = norm.affine(channel).weight;
    total += {weight * weight_sums[at], weight * bias_sums[at]};
  }
  total = row_total(plan, total);
  const A share = A(1) / (A(members) * A(norm.pixels));
  if (place.exists && place.index == 0) means[group] = {total.sum * share, total.inner * share};
}

}  // namespace opforge
