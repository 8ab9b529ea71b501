// SPDX-License-Identifier: Apache-2.0
// group_norm of images that are stored plane by plane (NCHW): visitors for algorithms/rows.cuh.
// Forward: a row is a group. Backward: a row is a plane, or a piece of one, and is read by each of
// two passes.
#pragma once

#include <opforge/families/norm/forward.cuh>

#include "kernel.cuh"

namespace opforge {

// A row is a group. Loads and statistics are those of NormForward; weight and bias are those of
// `norm`, one each per plane. Whole: each vector is in one plane. Otherwise it is in two at most,
// because planes are not shorter than a vector.
template <class T, bool Whole>
struct PlanesForward : NormForward<T, true, ForwardKind::plain> {
  using Base = NormForward<T, true, ForwardKind::plain>;
  using A = compute_t<T>;
  using Cursor = typename Base::Cursor;
  static constexpr bool kAnyRow = true;
  GroupNorm<T> norm;
  Division groups, plane_pixels;  // groups of a sample; pixels of a plane

  template <bool Ragged>
  using Holds = Holdings<HoldUsual<(sizeof(A) > 4 ? 1 : 2)>>;

  __device__ __forceinline__ Affine<A> affine(const Cursor& c, int64_t plane_index) const {
    const int64_t group = c.row - groups.divide(c.row) * groups.divisor;
    return norm.affine(group * norm.members.divisor + plane_index);
  }

  template <int N, bool Ragged>
  struct Params {
    Affine<A> first, second;
    int in_first;  // elements of the vector that are in the first plane; the others in the second
  };
  template <int N, bool Ragged>
  __device__ __forceinline__ Params<N, Ragged> load_params(const Cursor& c, int64_t col) const {
    const int64_t plane_index = plane_pixels.divide(col);
    Params<N, Ragged> params;
    params.first = affine(c, plane_index);
    if constexpr (!Whole && N > 1) {
      const int64_t left = (plane_index + 1) * plane_pixels.divisor - col;
      params.in_first = left < N ? int(left) : N;
      params.second = left < N ? affine(c, plane_index + 1) : params.first;
    }
    return params;
  }

  template <int N, bool Ragged>
  __device__ __forceinline__ Packed<T, N> result(const Cursor&, int64_t,
                                                 const typename Base::template Loaded<N>& in,
                                                 const Params<N, Ragged>& params,
                                                 const Scale<A>& scale) const {
    A v[N];
    widen(in.h, v);
    normalise<true>(v, scale);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const bool second = !Whole && N > 1 && e >= params.in_first;
      v[e] = norm.forward(v[e], second ? params.second : params.first);
    }
    return narrow<T>(v);
  }

  template <int N>
  __device__ __forceinline__ void write(const Cursor& c, int64_t col,
                                        const Packed<T, N>& out) const {
    if (this->y != nullptr) Base::template write<N>(c, col, out);  // else statistics alone
  }
};

// What both passes of the backward have in common. A row is a plane, or a piece of one: of x and of
// the gradient of y.
template <class T>
struct PlaneRows : WithoutParams, HeldAsUsual {
  using Element = T;
  using A = compute_t<T>;
  static constexpr bool kAnyRow = true;
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
  // Calls use(e, normed, grad_z).
  template <int N, class Use>
  __device__ __forceinline__ void each_element(const Plane& plane, const Loaded<N>& in,
                                               const Use& use) const {
    A v[N], grad_y[N];
    widen(in.x, v);
    widen(in.grad, grad_y);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const A normed = (v[e] - plane.mean) * plane.rstd;
      use(e, normed, norm.z_gradient(normed, plane.by, grad_y[e]));
    }
  }
};

// The first pass: the sums of the gradients of z, and of those times what was normalised.
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
      this->each_element(plane, in, [&](int, A normed, A grad_z) {
        own.inner = fma(grad_z, normed, own.inner);
        own.sum += grad_z;
      });
    });
    return total(own);
  }
  __device__ __forceinline__ void finish(const Cursor& c, const Dots<A, true>& sums) const {
    const int64_t plane = this->pieces.divide(c.row), pieces = this->pieces.divisor;
    const int64_t sample = this->channels.divide(plane), channels = this->channels.divisor;
    const int64_t part = sample * pieces + c.row - plane * pieces;  // of all samples
    const int64_t at = part * channels + plane - sample * channels;
    weight_sums[at] = sums.inner;
    bias_sums[at] = sums.sum;
  }

  // This pass writes no row. map_rows asks for result() and write() all the same.
  template <int N>
  __device__ __forceinline__ Packed<T, N> result(const Cursor&, int64_t, const Loaded<N>& in,
                                                 NoParams, const Dots<A, true>&) const {
    return in.x;
  }
  template <int N>
  __device__ __forceinline__ void write(const Cursor&, int64_t, const Packed<T, N>&) const {}
};

// The second pass: the gradient of x, from the means of the group.
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
                                                 NoParams, const Settled& settled) const {
    const typename Base::Plane& plane = settled.plane;
    A v[N];
    this->each_element(plane, in, [&](int e, A normed, A grad_z) {
      v[e] = settled.means.gradient(normed, plane.rstd, plane.by.weight, grad_z);
    });
    return narrow<T>(v);
  }
  template <int N>
  __device__ __forceinline__ void write(const Cursor& c, int64_t col,
                                        const Packed<T, N>& made) const {
    store<N>(out + c.row * cols + col, made);
  }
};

}  // namespace opforge
