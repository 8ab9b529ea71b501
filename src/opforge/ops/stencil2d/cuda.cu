// SPDX-License-Identifier: Apache-2.0
#include <opforge/host/split.h>

#include "host.h"
#include "kernel.cuh"

namespace opforge {

namespace {

template <class T>
StencilParams<T> params(const SplitView& x, const Tensor& weight, Boundary boundary, double fill) {
  StencilParams<T> p = {};
  p.x = data<T>(x.tensor);
  p.x_plane = x.outer_stride;
  p.x_row = x.length_stride;
  p.height = x.length;
  p.width = x.inner;
  const bool own_dtype = dtype_code(weight) == dtype_code(x.tensor);
  p.weight = own_dtype ? data<T>(weight) : nullptr;
  p.weight32 = own_dtype ? nullptr : data<float>(weight);
  p.weight_stride = strides(weight)[0];
  p.boundary = boundary;
  p.fill = fill;
  return p;
}

template <int N>
using Count = std::integral_constant<int, N>;

template <class T>
bool aligned(const SplitView& s) {
  return s.inner % kVec<T> == 0 && s.length_stride % kVec<T> == 0 &&
         s.outer_stride % kVec<T> == 0 && misalignment(data<T>(s.tensor)) == 0 && tuning.vec != 1;
}

// Calls run with the kind of tile that suits the image, which is cut into so many, and the number
// of weights.
template <class T, class Run>
void with_tile(StencilParams<T>& p, const Tensor& weight, int64_t planes, bool vectors,
               const Run& run) {
  const auto cut = [&]<class Tile>(Type<Tile>) {
    p.shape = Tile::choose(p.height, p.width / Tile::N, planes);
    const int64_t across = ceil_div(p.width, p.shape.across * Tile::N);
    const int64_t down = ceil_div(p.height, p.shape.height()), tiles = across * down * planes;
    OPFORGE_CHECK(tiles < int64_t(1) << 31,
                  "stencil2d: x has more images than a GPU takes at once");
    p.tiles_across = uint32_t(across);
    p.tiles_down = uint32_t(down);
    weight.size(0) == 9 ? run(Type<Tile>{}, Count<9>{}, tiles)
                        : run(Type<Tile>{}, Count<5>{}, tiles);
  };
  // Vectors of so few columns fill a tile only if there are many rows.
  const bool narrow = p.width <= SmallTile<T>::kAcross;
  const bool few = p.height * (p.width / kVec<T>) < VectorTile<T>::kThreads / 2;
  if (narrow && (few || !vectors)) {
    cut(Type<SmallTile<T>>{});
  } else if (vectors) {
    cut(Type<VectorTile<T>>{});
  } else {
    cut(Type<PixelTile<T>>{});
  }
}

}  // namespace

Tensor stencil2d_cuda(const Tensor& x, const Tensor& weight, int64_t boundary, double fill) {
  const Boundary kind = checked(x, weight, boundary);
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(sizes(x), x);
  if (x.numel() == 0) return y;
  const SplitView image = split_at(x, x.dim() - 2);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    StencilParams<T> p = params<T>(image, weight, kind, fill);
    p.out = mutable_data<T>(y);
    with_tile(p, weight, image.outer, aligned<T>(image),
              [&]<class Tile, int N>(Type<Tile>, Count<N>, int64_t tiles) {
                launch(stencil<Tile, N>,
                       {dim3(unsigned(tiles)), dim3(Tile::kThreads), current_stream(x)}, p);
              });
  });
  return y;
}

std::tuple<Tensor, Tensor> stencil2d_backward_cuda(const Tensor& grad_y, const Tensor& x,
                                                   const Tensor& weight, int64_t boundary,
                                                   double fill, bool needs_x, bool needs_weight) {
  const Boundary kind = checked(x, weight, boundary);
  const DeviceGuard guard(x.get_device_index());
  const StencilGradients out = allocate_gradients(grad_y, x, weight, needs_x, needs_weight);
  if (x.numel() == 0) return {out.x, out.weight};
  // unreached: autograd asks for one of them, at least
  if (!needs_x && !needs_weight) return {out.x, out.weight};
  const SplitView image = split_at(x, x.dim() - 2), grad = split_at(grad_y, x.dim() - 2);
  const cudaStream_t stream = current_stream(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    using A = compute_t<T>;
    StencilParams<T> p = params<T>(image, weight, kind, fill);
    p.grad = data<T>(grad.tensor);
    p.grad_plane = grad.outer_stride;
    p.grad_row = grad.length_stride;
    p.out = needs_x ? mutable_data<T>(out.x) : nullptr;
    const bool vectors = aligned<T>(image) && aligned<T>(grad);
    with_tile(p, weight, image.outer, vectors,
              [&]<class Tile, int N>(Type<Tile>, Count<N>, int64_t tiles) {
                const int64_t words = needs_weight ? tiles * N : 0;
                const Tensor partial = empty({&words, 1}, accumulator_dtype(x), x);
                A* const sums = needs_weight ? mutable_data<A>(partial) : nullptr;
                launch(stencil_backward<Tile, N>,
                       {dim3(unsigned(tiles)), dim3(Tile::kThreads), stream}, p, sums);
                if (!needs_weight) return;
                const Config finish{dim3(N), dim3(1024), stream, 0, true};
                if (p.weight) {
                  launch(sum_weights<A, T>, finish, sums, tiles, mutable_data<T>(out.weight));
                } else {
                  launch(sum_weights<A, float>, finish, sums, tiles,
                         mutable_data<float>(out.weight));
                }
              });
  });
  return {out.x, out.weight};
}

OPFORGE_IMPL(stencil2d, stencil2d_cuda)
OPFORGE_IMPL(stencil2d_backward, stencil2d_backward_cuda)

}  // namespace opforge
