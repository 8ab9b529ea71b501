// SPDX-License-Identifier: Apache-2.0
#include <opforge/host/partial_sums.h>

#include "images.h"
#include "pixels.cuh"
#include "planes.cuh"

namespace opforge {

namespace {

template <class T>
GroupNorm<T> make_norm(const GroupNormArguments& given, const ParamView& weight,
                       const ParamView& bias, const ImagesView& x) {
  const int64_t members = x.channels / given.groups;
  // Divided by it: channels, planes of all samples, and channels times parts.
  const int64_t most = x.samples * x.channels * x.pixels;
  return {weight.read(), bias.read(), given.silu, x.channels, x.pixels, Division(most, members)};
}

// Statistics, and y if there is one.
struct Results {
  Tensor y, mean, rstd;
};

template <class T>
void launch_planes(const GroupNormArguments& given, const GroupNorm<T>& norm, const ImagesView& x,
                   const Results& out) {
  using A = compute_t<T>;
  constexpr int N = kVec<T>;
  const int64_t rows = x.samples * given.groups, cols = x.channels / given.groups * x.pixels;
  const auto run = [&]<int Width, bool Whole>(std::bool_constant<Whole>, bool ragged) {
    PlanesForward<T, Whole> visitor{};
    visitor.x = rows_of<T>(x, cols);
    visitor.y = out.y.numel() > 0 ? mutable_data<T>(out.y) : nullptr;
    visitor.mean = mutable_data<A>(out.mean);
    visitor.rstd = mutable_data<A>(out.rstd);
    visitor.eps = A(given.eps);
    visitor.share = A(1) / A(cols);
    visitor.cols = cols;
    visitor.norm = norm;
    visitor.groups = Division(rows, given.groups);
    visitor.plane_pixels = Division(cols, x.pixels);
    map_rows<Width>(rows, cols, ragged, visitor, current_stream(x.tensor));
  };
  // Rows of x and y must be misaligned alike. Samples of the new y begin at multiples of N.
  const bool vectors = tuning.vec != 1 && begins_at<T>(x, N) && x.channels * x.pixels % N == 0;
  if constexpr (sizeof(T) < 8) {
    if (vectors && x.pixels % N == 0) return run.template operator()<N>(std::true_type{}, false);
    if (vectors && x.pixels >= N) {
      return run.template operator()<N>(std::false_type{}, cols % N != 0);
    }
  }
  run.template operator()<1>(std::false_type{}, false);
}

template <class T, class Run>
void with_pixel_vectors(std::initializer_list<const ImagesView*> operands, const Run& run) {
  constexpr int N = kVec<T>;
  bool vectors = tuning.vec != 1;
  for (const ImagesView* one : operands) {
    vectors =
        vectors && one->channels % N == 0 && begins_at<T>(*one, N) && one->pixel_stride % N == 0;
  }
  vectors ? run(Width<N>{}) : run(Width<1>{});
}

template <class T>
void pixels_statistics(const GroupNormArguments& given, const GroupNorm<T>& norm,
                       const ImagesView& x, const Results& out) {
  using A = compute_t<T>;
  const cudaStream_t stream = current_stream(x.tensor);
  with_pixel_vectors<T>({&x}, [&]<int N>(Width<N>) {
    const PixelPlan p = plan_pixels(x.samples, x.channels, x.pixels, N);
    const int64_t words = 2 * p.partials();
    const Tensor room = empty({&words, 1}, accumulator_dtype(x.tensor), x.tensor);
    auto* const parts = reinterpret_cast<Moments<A>*>(mutable_data<A>(room));
    launch(pixel_moments<T, N>, {dim3(unsigned(p.blocks())), dim3(p.threads()), stream}, norm, p,
           read_pixels<T>(x), parts);
    const RowPlan plan = plan_groups(x.samples * given.groups, p.chunks * norm.members.divisor);
    launch(group_moments<T>, {dim3(plan.blocks()), dim3(kRowBlock), stream, 0, true}, plan, norm, p,
           given.groups, read_pixels<T>(x), parts, A(given.eps), mutable_data<A>(out.mean),
           mutable_data<A>(out.rstd));
  });
}

// Into out's tensors, of which y may be empty.
void normalise(const GroupNormArguments& given, const ImagesView& x, ImageOrder order,
               const Results& out) {
  const ParamView weight = as_param(given.weight, x.tensor), bias = as_param(given.bias, x.tensor);
  dispatch(dtype_of(x.tensor), [&]<class T>(Type<T>) {
    using A = compute_t<T>;
    const GroupNorm<T> norm = make_norm<T>(given, weight, bias, x);
    if (order == ImageOrder::planes) return launch_planes<T>(given, norm, x, out);
    pixels_statistics<T>(given, norm, x, out);
    if (out.y.numel() == 0) return;
    const ImagesView y(out.y);
    with_pixel_vectors<T>({&x, &y}, [&]<int N>(Width<N>) {
      const PixelPlan p = plan_pixels(x.samples, x.channels, x.pixels, N);
      launch(normalise_pixels<T, N>,
             {dim3(unsigned(p.blocks())), dim3(p.threads()), current_stream(x.tensor), 0, true},
             norm, p, given.groups, read_pixels<T>(x), data<A>(out.mean), data<A>(out.rstd),
             write_pixels<T>(y));
    });
  });
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> group_norm_cuda(const Tensor& x,
                                                   const std::optional<Tensor>& weight,
                                                   const std::optional<Tensor>& bias,
                                                   int64_t groups, double eps, bool silu,
                                                   bool save) {
  const GroupNormArguments given{weight, bias, groups, eps, silu};
  given.check(x);
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty_like(x);
  if (x.numel() == 0) return {y, no_statistic(x), no_statistic(x)};
  const Results out{y, given.statistic(x), given.statistic(x)};
  const ImagesView from(x);
  const ImageOrder order = order_of(from, ImagesView(y));
  if (order == ImageOrder::other) {
    const Results flat{empty(sizes(x), x), out.mean, out.rstd};
    normalise(given, ImagesView(contiguous(x)), ImageOrder::planes, flat);
    copy_into(y, flat.y);
  } else {
    normalise(given, from, order, out);
  }
  if (!save) return {y, no_statistic(x), no_statistic(x)};
  return {y, out.mean, out.rstd};
}

namespace {

// Room for the sums of each channel in each part of all samples; those for the weight first.
template <class A>
struct ChannelSums {
  Tensor room;
  int64_t parts, channels;

  ChannelSums(int64_t parts, int64_t channels, const Tensor& like)
      : parts(parts), channels(channels) {
    const int64_t words = 2 * parts * channels;
    room = empty({&words, 1}, accumulator_dtype(like), like);
  }
  A* weight() const { return mutable_data<A>(room); }
  A* bias() const { return weight() + parts * channels; }
};

struct Gradients {
  Tensor x, weight, bias;
};

// How many pieces a plane is cut into: of one length, at most `most`, which a block holds, and a
// multiple of any vector. 1 where there is no such length: then a cluster takes the plane.
int64_t cut(int64_t pixels, int64_t most) {
  const int64_t least = ceil_div(pixels, most);
  if (least == 1 || pixels % 8 != 0) return 1;
  for (int64_t pieces = least; pieces <= 4 * least; ++pieces) {
    if (pixels % (pieces * 8) == 0) return pieces;
  }
  return 1;
}

template <class T>
class BackwardRun {
  using A = compute_t<T>;

 public:
  BackwardRun(const GroupNormArguments& given, const GroupNorm<T>& norm, const ImagesView& x,
              const ImagesView& grad, const Results& statistics, const Gradients& out)
      : given_(given),
        norm_(norm),
        x_(x),
        grad_(grad),
        mean_(data<A>(statistics.mean)),
        rstd_(data<A>(statistics.rstd)),
        out_(out),
        stream_(current_stream(x.tensor)) {
    const int64_t words = 2 * x.samples * given.groups;
    means_room_ = empty({&words, 1}, accumulator_dtype(x.tensor), x.tensor);
    means_ = reinterpret_cast<GroupMeans<A>*>(mutable_data<A>(means_room_));
  }

  void planes() {
    constexpr int N = kVec<T>;
    const int64_t pieces = cut(x_.pixels, kHeld * kRowThreads * N);
    const int64_t rows = x_.samples * x_.channels * pieces, cols = x_.pixels / pieces;
    const ChannelSums<A> sums(x_.samples * pieces, x_.channels, x_.tensor);
    const bool vectors = tuning.vec != 1 && begins_at<T>(x_, N) && begins_at<T>(grad_, N) &&
                         x_.channels * x_.pixels % N == 0 && cols >= N;
    const auto run = [&](auto visitor) {
      visitor.x = rows_of<T>(x_, cols);
      visitor.grad = rows_of<T>(grad_, cols);
      visitor.norm = norm_;
      visitor.mean = mean_;
      visitor.rstd = rstd_;
      visitor.channels = Division(rows, x_.channels);
      visitor.pieces = Division(rows, pieces);
      if (vectors) return map_rows<N>(rows, cols, cols % N != 0, visitor, stream_);
      map_rows<1>(rows, cols, false, visitor, stream_);
    };
    PlaneSums<T> adding{};
    adding.weight_sums = sums.weight();
    adding.bias_sums = sums.bias();
    run(adding);
    find_means(int(pieces), sums);
    PlaneGradient<T> gradient{};
    gradient.means = means_;
    gradient.out = mutable_data<T>(out_.x);
    gradient.cols = cols;
    run(gradient);
    finish(sums);
  }

  void pixels() {
    const ImagesView to(out_.x);
    with_pixel_vectors<T>({&x_, &grad_, &to}, [&]<int N>(Width<N>) {
      const PixelPlan p = plan_pixels(x_.samples, x_.channels, x_.pixels, N);
      const ChannelSums<A> sums(p.samples * p.chunks, p.channels, x_.tensor);
      const Config config{dim3(unsigned(p.blocks())), dim3(p.threads()), stream_};
      launch(pixel_sums<T, N>, config, norm_, p, given_.groups, read_pixels<T>(x_),
             read_pixels<T>(grad_), mean_, rstd_, sums.weight(), sums.bias());
      find_means(int(p.chunks), sums);
      launch(pixels_gradient<T, N>, {config.grid, config.block, stream_, 0, true}, norm_, p,
             given_.groups, read_pixels<T>(x_), read_pixels<T>(grad_), mean_, rstd_, means_,
             write_pixels<T>(to));
      finish(sums);
    });
  }

 private:
  void find_means(int parts, const ChannelSums<A>& sums) {
    const RowPlan plan =
        plan_groups(x_.samples * given_.groups, parts * (x_.channels / given_.groups));
    launch(group_means<T>, {dim3(plan.blocks()), dim3(kRowBlock), stream_, 0, true}, plan, norm_,
           given_.groups, parts, sums.weight(), sums.bias(), means_);
  }

  void finish(const ChannelSums<A>& sums) {
    PartialSums<A>{given_.weight ? sums.weight() : nullptr, given_.bias ? sums.bias() : nullptr,
                   sums.parts, sums.channels}
        .finish(out_.weight, out_.bias, false, stream_);
  }

  const GroupNormArguments& given_;
  const GroupNorm<T>& norm_;
  const ImagesView &x_, &grad_;
  const A *mean_, *rstd_;
  const Gradients& out_;
  const cudaStream_t stream_;
  Tensor means_room_;
  GroupMeans<A>* means_;
};

}  // namespace

std::tuple<Tensor, Tensor, Tensor> group_norm_backward_cuda(const Tensor& grad_y, const Tensor& x_,
                                                            const std::optional<Tensor>& weight_,
                                                            const std::optional<Tensor>& bias_,
                                                            int64_t groups, double eps, bool silu,
                                                            const Tensor& mean,
                                                            const Tensor& rstd) {
  const GroupNormArguments given{weight_, bias_, groups, eps, silu};
  given.check_backward(grad_y, x_, mean, rstd);
  const DeviceGuard guard(x_.get_device_index());
  const Gradients out{empty_like(x_), param_gradient(weight_, x_), param_gradient(bias_, x_)};
  if (x_.numel() == 0) {
    fill_zero(out.weight);
    fill_zero(out.bias);
    return {out.x, out.weight, out.bias};
  }
  ImagesView x(x_);
  ImageOrder order = order_of(x, ImagesView(out.x));
  Gradients to = out;
  if (order == ImageOrder::other) {
    x = ImagesView(contiguous(x_));
    to.x = empty(sizes(x_), x_);
    order = ImageOrder::planes;
  }
  ImagesView grad(grad_y);
  if (order == ImageOrder::planes ? !are_planes(grad) : !are_pixels(grad)) {
    const Tensor copy = empty_like(to.x);
    copy_into(copy, grad_y);
    grad = ImagesView(copy);
  }
  Results statistics{no_statistic(x_), contiguous(mean), contiguous(rstd)};
  if (mean.numel() == 0 || rstd.numel() == 0) {
    statistics = {no_statistic(x_), given.statistic(x_), given.statistic(x_)};
    normalise(given, x, order, statistics);
  }
  const ParamView weight = as_param(given.weight, x.tensor), bias = as_param(given.bias, x.tensor);
  dispatch(dtype_of(x.tensor), [&]<class T>(Type<T>) {
    const GroupNorm<T> norm = make_norm<T>(given, weight, bias, x);
    BackwardRun<T> run(given, norm, x, grad, statistics, to);
    order == ImageOrder::planes ? run.planes() : run.pixels();
  });
  if (to.x.const_data_ptr() != out.x.const_data_ptr()) copy_into(out.x, to.x);
  return {out.x, out.weight, out.bias};
}

OPFORGE_IMPL(group_norm, group_norm_cuda)
OPFORGE_IMPL(group_norm_backward, group_norm_backward_cuda)

}  // namespace opforge
