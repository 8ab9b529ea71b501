// SPDX-License-Identifier: Apache-2.0
// Forward reads x and writes y: the floor is a copy. Backward reads grad and x and writes grad_x:
// 1.5 copies.
//
// Planes (NCHW): a group is one run of memory, a row of rows.cuh with a weight per plane; the
// forward reads it once, if a cluster holds it. Pixels (NHWC): pixels.cuh. The backward sums each
// channel, of which the totals of a group and the gradients of weight and bias follow, and reads
// its operands again for grad_x, in part from the L2 cache.
#pragma once

#include <opforge/families/activations/device.cuh>
#include <opforge/families/norm/backward.cuh>

namespace opforge {

// By a number known at launch; in 64 bits where what is divided does not fit 31.
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
  __device__ __forceinline__ A backward(A normed, const Affine<A>& by, A grad) const {
    if (!silu) return grad;
    A value;
    return Silu<T>{}.gradient(fma(normed, by.weight, by.bias), grad, value);
  }
};

// What a group's gradient takes besides its statistics: the means of weight · grad and of
// weight · grad · normed.
template <class A>
struct GroupMeans {
  A grad, inner;

  // The gradient of x, given that of z.
  __device__ __forceinline__ A gradient(A normed, A rstd, A weight, A passed) const {
    return fma(-normed, inner, product(weight, passed) - grad) * rstd;
  }
};

// A row is a group. Whole: a vector lies in one plane; else in two at most, where planes are not
// shorter than a vector.
template <class T, bool Whole>
struct PlanesForward : NormForward<T, true, Extras::none> {
  using Base = NormForward<T, true, Extras::none>;
  using A = compute_t<T>;
  using Cursor = typename Base::Cursor;
  static constexpr bool kLong = true;
  GroupNorm<T> norm;
  Division groups, plane;  // groups of a sample; pixels of a plane

  template <bool Ragged>
  using Holds = Holdings<HoldUsual<(sizeof(A) > 4 ? 1 : 2)>>;

  __device__ __forceinline__ Affine<A> affine(const Cursor& c, int64_t plane) const {
    const int64_t group = c.row - groups.divide(c.row) * groups.divisor;
    return norm.affine(group * norm.members.divisor + plane);
  }

  template <int N, bool Ragged>
  struct Beside {
    Affine<A> first, second;
    int left;  // elements of the first plane
  };
  template <int N, bool Ragged>
  __device__ __forceinline__ Beside<N, Ragged> load_beside(const Cursor& c, int64_t col) const {
    const int64_t which = plane.divide(col);
    Beside<N, Ragged> beside;
    beside.first = affine(c, which);
    if constexpr (!Whole && N > 1) {
      const int64_t left = (which + 1) * plane.divisor - col;
      beside.left = left < N ? int(left) : N;
      beside.second = left < N ? affine(c, which + 1) : beside.first;
    }
    return beside;
  }

  template <int N, bool Ragged>
  __device__ __forceinline__ Packed<T, N> result(const Cursor&, int64_t,
                                                 const typename Base::template Loaded<N>& in,
                                                 const Beside<N, Ragged>& beside,
                                                 const Scale<A>& scale) const {
    A v[N];
    widen(in.h, v);
    normalise<true>(v, scale);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const bool second = !Whole && N > 1 && e >= beside.left;
      v[e] = norm.forward(v[e], second ? beside.second : beside.first);
    }
    return narrow<T>(v);
  }

  template <int N>
  __device__ __forceinline__ void write(const Cursor& c, int64_t col,
                                        const Packed<T, N>& out) const {
    if (this->y != nullptr) Base::template write<N>(c, col, out);  // else statistics alone
  }
};

// A row is a plane, or a piece of one: of x and of the gradient of y.
template <class T>
struct PlaneRows : NothingBeside, HeldAsUsual {
  using Element = T;
  using A = compute_t<T>;
  static constexpr bool kLong = true;
  Rows<const T> x, grad;
  GroupNorm<T> norm;
  const A *mean, *rstd;       // of each group
  Division channels, pieces;  // of a sample; of a plane

  struct Cursor {
    int64_t row;
    const T *x, *grad;
  };
  template <int N>
  struct Loaded {
    Packed<T, N> x, grad;
  };
  // What the elements of a plane have in common; planes are counted through all samples.
  struct Plane {
    int64_t group;
    A mean, rstd;
    Affine<A> by;
  };

  __device__ __forceinline__ Cursor start(int64_t row) const {
    return {row, x.at(row), grad.at(row)};
  }
  __device__ __forceinline__ const T* first(const Cursor& c) const { return c.x; }
  template <int N>
  __device__ __forceinline__ Loaded<N> load(const Cursor& c, int64_t col) const {
    return {load_packed<N>(c.x + col), load_packed<N>(c.grad + col)};
  }
  template <int N>
  __device__ __forceinline__ void prepare(const Cursor&, int64_t, Loaded<N>&, bool) const {}

  __device__ __forceinline__ Plane plane_of(const Cursor& c) const {
    const int64_t index = pieces.divide(c.row), group = norm.members.divide(index);
    const int64_t channel = index - channels.divide(index) * channels.divisor;
    return {group, mean[group], rstd[group], norm.affine(channel)};
  }
  // Calls use(e, normed, gradient of z).
  template <int N, class Use>
  __device__ __forceinline__ void each_element(const Plane& plane, const Loaded<N>& in,
                                               const Use& use) const {
    A v[N], passed[N];
    widen(in.x, v);
    widen(in.grad, passed);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const A normed = (v[e] - plane.mean) * plane.rstd;
      use(e, normed, norm.backward(normed, plane.by, passed[e]));
    }
  }
};

// The sums of the gradients of z, and of those times what was normalised.
template <class T>
struct PlaneSums : PlaneRows<T> {
  using Base = PlaneRows<T>;
  using A = compute_t<T>;
  using Cursor = typename Base::Cursor;
  template <int N>
  using Loaded = typename Base::template Loaded<N>;
  A *weight_sums, *bias_sums;

  template <class Each, class Total>
  __device__ __forceinline__ Dots<A, true> settle(const Cursor& c, const Each& each,
                                                  const Total& total) const {
    const typename Base::Plane plane = this->plane_of(c);
    Dots<A, true> own;
    each([&]<int N>(const Loaded<N>& in) {
      this->each_element(plane, in, [&](int, A normed, A passed) {
        own.a = fma(passed, normed, own.a);
        own.b += passed;
      });
    });
    return total(own);
  }
  __device__ __forceinline__ void finish(const Cursor& c, const Dots<A, true>& sums) const {
    const int64_t plane = this->pieces.divide(c.row), pieces = this->pieces.divisor;
    const int64_t sample = this->channels.divide(plane), channels = this->channels.divisor;
    const int64_t part = sample * pieces + c.row - plane * pieces;
    const int64_t at = part * channels + plane - sample * channels;
    weight_sums[at] = sums.a;
    bias_sums[at] = sums.b;
  }

  // No new row comes of it.
  template <int N>
  __device__ __forceinline__ Packed<T, N> result(const Cursor&, int64_t, const Loaded<N>& in,
                                                 Nothing, const Dots<A, true>&) const {
    return in.x;
  }
  template <int N>
  __device__ __forceinline__ void write(const Cursor&, int64_t, const Packed<T, N>&) const {}
};

template <class T>
struct PlaneGradient : PlaneRows<T> {
  using Base = PlaneRows<T>;
  using A = compute_t<T>;
  using Cursor = typename Base::Cursor;
  template <int N>
  using Loaded = typename Base::template Loaded<N>;
  const GroupMeans<A>* means;
  T* out;
  int64_t cols;

  struct Settled {
    typename Base::Plane plane;
    GroupMeans<A> means;
  };

  template <class Each, class Total>
  __device__ __forceinline__ Settled settle(const Cursor& c, const Each&, const Total&) const {
    const typename Base::Plane plane = this->plane_of(c);
    return {plane, means[plane.group]};
  }
  __device__ __forceinline__ void finish(const Cursor&, const Settled&) const {}

  template <int N>
  __device__ __forceinline__ Packed<T, N> result(const Cursor&, int64_t, const Loaded<N>& in,
                                                 Nothing, const Settled& settled) const {
    const typename Base::Plane& plane = settled.plane;
    A v[N];
    this->each_element(plane, in, [&](int e, A normed, A passed) {
      v[e] = settled.means.gradient(normed, plane.rstd, plane.by.weight, passed);
    });
    return narrow<T>(v);
  }
  template <int N>
  __device__ __forceinline__ void write(const Cursor& c, int64_t col,
                                        const Packed<T, N>& made) const {
    store<N>(out + c.row * cols + col, made);
  }
};

// For so many numbers to a group: many groups have few.
inline RowPlan plan_groups(int64_t groups, int64_t numbers) {
  const int lanes = numbers > kRowBlock ? kRowBlock : numbers > 8 ? kWarp : 8;
  return {groups, numbers, lanes, 1, kRowBlock, true};
}

// From the sums of a group's channels in each part of its sample.
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
  if (place.exists && place.index == 0) means[group] = {total.b * share, total.a * share};
}

}  // namespace opforge
