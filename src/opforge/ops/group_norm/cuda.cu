// SPDX-License-Identifier: Apache-2.0
#include <opforge/host/rows.h>
#include <opforge/host/split.h>

#include "pixels.cuh"

namespace opforge {

namespace {

struct Given {
  const std::optional<Tensor>&weight, &bias;
  int64_t groups;
  double eps;
  bool silu;

  void check(const Tensor& x) const {
    OPFORGE_CHECK(x.dim() >= 2, "group_norm: x must have at least two dims");
    OPFORGE_CHECK(groups >= 1 && x.size(1) % groups == 0,
                  "group_norm: groups must divide the channels of x");
    OPFORGE_CHECK(eps > 0 && eps < INFINITY, "group_norm: eps must be positive");
    for (const auto* param : {&weight, &bias}) {
      OPFORGE_CHECK(!*param || (same_device(x, **param) && (*param)->dim() == 1 &&
                                (*param)->size(0) == x.size(1)),
                    "group_norm: weight and bias must hold one value per channel of x");
    }
  }
};

// Samples of channels of pixels. Planes: the pixels of a channel are neighbours, and so are its
// planes. Pixels: the channels of a pixel are neighbours. Neither: strides that have no kernel.
struct Images {
  Tensor tensor;
  int64_t samples, channels, pixels = 1;
  int64_t sample_stride, pixel_stride = 1;
  bool are_planes, are_pixels;

  explicit Images(const Tensor& x)
      : tensor(x), samples(x.size(0)), channels(x.size(1)), sample_stride(strides(x)[0]) {
    const bool merged = detail::merge_dims(x, 2, sizes(x).size(), pixels, pixel_stride);
    const int64_t channel_stride = strides(x)[1];
    are_planes =
        merged && (pixels == 1 || pixel_stride == 1) && (channels == 1 || channel_stride == pixels);
    are_pixels = merged && (channels == 1 || channel_stride == 1);
    if (pixels == 1) pixel_stride = channels;
    if (samples == 1) sample_stride = channels * pixels;
    // Where samples are apart, Rows counts in 32 bits, and 0 means that they are not. A plane has
    // no more pieces than this; see cut().
    const bool counted = samples * channels * (pixels / 1024 + 4) < int64_t(1) << 31;
    are_planes = are_planes && (dense_samples() || (counted && sample_stride != 0));
  }
  bool dense_samples() const { return sample_stride == channels * pixels; }
  // As new tensors are, with no gap.
  bool dense_planes() const { return are_planes && dense_samples(); }
  bool dense_pixels() const { return are_pixels && pixel_stride == channels && dense_samples(); }

  template <class T>
  bool begins(int64_t n) const {  // with samples at multiples of n elements
    return misalignment(data<T>(tensor)) % n == 0 && sample_stride % n == 0;
  }
  // Rows of `length` elements, one after the other in each sample.
  template <class T>
  Rows<const T> rows(int64_t length) const {
    const int64_t each = channels * pixels / length;
    if (dense_samples()) return {data<T>(tensor), length};
    return {data<T>(tensor), length, sample_stride, Divider<uint32_t>(each)};
  }
  template <class T>
  Pixels<const T> read() const {
    return {data<T>(tensor), sample_stride, pixel_stride};
  }
};

// Operands as `x` and its result lie, or contiguous copies.
enum class Kind { planes, pixels, other };

Kind kind_of(const Images& x, const Images& out) {
  if (out.dense_planes() && x.are_planes) return Kind::planes;
  return out.dense_pixels() && x.are_pixels ? Kind::pixels : Kind::other;
}

template <class T>
GroupNorm<T> make_norm(const Given& given, const ParamView& weight, const ParamView& bias,
                       const Images& x) {
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
void planes_forward(const Given& given, const GroupNorm<T>& norm, const Images& x,
                    const Results& out) {
  using A = compute_t<T>;
  constexpr int N = kVec<T>;
  const int64_t rows = x.samples * given.groups, cols = x.channels / given.groups * x.pixels;
  const auto run = [&]<int Width, bool Whole>(std::bool_constant<Whole>, bool ragged) {
    PlanesForward<T, Whole> visitor{};
    visitor.x = x.rows<T>(cols);
    visitor.y = out.y.numel() > 0 ? mutable_data<T>(out.y) : nullptr;
    visitor.mean = mutable_data<A>(out.mean);
    visitor.rstd = mutable_data<A>(out.rstd);
    visitor.eps = A(given.eps);
    visitor.share = A(1) / A(cols);
    visitor.cols = cols;
    visitor.norm = norm;
    visitor.groups = Division(rows, given.groups);
    visitor.plane = Division(cols, x.pixels);
    map_rows<Width>(rows, cols, ragged, visitor, current_stream(x.tensor));
  };
  // y begins at a multiple of N, and x must not be aligned otherwise.
  const bool vectors = tuning.vec != 1 && x.begins<T>(N) && x.channels * x.pixels % N == 0;
  if constexpr (sizeof(T) < 8) {
    if (vectors && x.pixels % N == 0) return run.template operator()<N>(std::true_type{}, false);
    if (vectors && x.pixels >= N) {
      return run.template operator()<N>(std::false_type{}, cols % N != 0);
    }
  }
  run.template operator()<1>(std::false_type{}, false);
}

template <class T, class Run>
void with_pixel_vectors(std::initializer_list<const Images*> operands, const Run& run) {
  constexpr int N = kVec<T>;
  bool vectors = tuning.vec != 1;
  for (const Images* one : operands) {
    vectors = vectors && one->channels % N == 0 && one->begins<T>(N) && one->pixel_stride % N == 0;
  }
  vectors ? run(Width<N>{}) : run(Width<1>{});
}

template <class T>
void pixels_statistics(const Given& given, const GroupNorm<T>& norm, const Images& x,
                       const Results& out) {
  using A = compute_t<T>;
  const cudaStream_t stream = current_stream(x.tensor);
  with_pixel_vectors<T>({&x}, [&]<int N>(Width<N>) {
    const PixelPlan p = plan_pixels(x.samples, x.channels, x.pixels, N);
    const int64_t words = 2 * p.partials();
    const Tensor room = empty({&words, 1}, accumulator_dtype(x.tensor), x.tensor);
    auto* const parts = reinterpret_cast<Moments<A>*>(mutable_data<A>(room));
    launch(pixel_moments<T, N>, {dim3(unsigned(p.blocks())), dim3(p.threads()), stream}, norm, p,
           x.read<T>(), parts);
    const RowPlan plan = plan_groups(x.samples * given.groups, p.chunks * norm.members.divisor);
    launch(group_moments<T>, {dim3(plan.blocks()), dim3(kRowBlock), stream, 0, true}, plan, norm, p,
           given.groups, x.read<T>(), parts, A(given.eps), mutable_data<A>(out.mean),
           mutable_data<A>(out.rstd));
  });
}

// Into out's tensors, of which y may be empty.
void normalise(const Given& given, const Images& x, Kind kind, const Results& out) {
  const ParamView weight = as_param(given.weight, x.tensor), bias = as_param(given.bias, x.tensor);
  dispatch(dtype_of(x.tensor), [&]<class T>(Type<T>) {
    using A = compute_t<T>;
    const GroupNorm<T> norm = make_norm<T>(given, weight, bias, x);
    if (kind == Kind::planes) return planes_forward<T>(given, norm, x, out);
    pixels_statistics<T>(given, norm, x, out);
    if (out.y.numel() == 0) return;
    const Images y(out.y);
    with_pixel_vectors<T>({&x, &y}, [&]<int N>(Width<N>) {
      const PixelPlan p = plan_pixels(x.samples, x.channels, x.pixels, N);
      const Pixels<T> to{mutable_data<T>(out.y), y.sample_stride, y.pixel_stride};
      launch(pixels_forward<T, N>,
             {dim3(unsigned(p.blocks())), dim3(p.threads()), current_stream(x.tensor), 0, true},
             norm, p, given.groups, x.read<T>(), data<A>(out.mean), data<A>(out.rstd), to);
    });
  });
}

Tensor statistic(const Tensor& x, int64_t groups) {
  const int64_t shape[2] = {x.size(0), groups};
  return empty(shape, accumulator_dtype(x), x);
}

Tensor no_statistic(const Tensor& x) {
  const int64_t none = 0;
  return empty({&none, 1}, accumulator_dtype(x), x);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> group_norm_cuda(const Tensor& x,
                                                   const std::optional<Tensor>& weight,
                                                   const std::optional<Tensor>& bias,
                                                   int64_t groups, double eps, bool silu,
                                                   bool save) {
  const Given given{weight, bias, groups, eps, silu};
  given.check(x);
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty_like(x);
  if (x.numel() == 0) return {y, no_statistic(x), no_statistic(x)};
  const Results out{y, statistic(x, groups), statistic(x, groups)};
  const Images from(x);
  const Kind kind = kind_of(from, Images(y));
  if (kind == Kind::other) {
    const Results flat{empty(sizes(x), x), out.mean, out.rstd};
    normalise(given, Images(contiguous(x)), Kind::planes, flat);
    copy_into(y, flat.y);
  } else {
    normalise(given, from, kind, out);
  }
  if (!save) return {y, no_statistic(x), no_statistic(x)};
  return {y, out.mean, out.rstd};
}

namespace {

// The parts' sums of channels, those for the weight first.
template <class A>
struct Partials {
  Tensor room;
  int64_t parts, channels;

  Partials(int64_t parts, int64_t channels, const Tensor& like) : parts(parts), channels(channels) {
    const int64_t words = 2 * parts * channels;
    room = empty({&words, 1}, accumulator_dtype(like), like);
  }
  A* weight() const { return mutable_data<A>(room); }
  A* bias() const { return weight() + parts * channels; }
};

struct Gradients {
  Tensor x, weight, bias;
};

// Pieces of one length, a multiple of a vector, that a block holds. One, where there is no such
// length: then a cluster takes the plane.
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
  BackwardRun(const Given& given, const GroupNorm<T>& norm, const Images& x, const Images& grad,
              const Results& statistics, const Gradients& out)
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
    const Partials<A> sums(x_.samples * pieces, x_.channels, x_.tensor);
    const bool vectors = tuning.vec != 1 && x_.begins<T>(N) && grad_.begins<T>(N) &&
                         x_.channels * x_.pixels % N == 0 && cols >= N;
    const auto run = [&](auto visitor) {
      visitor.x = x_.rows<T>(cols);
      visitor.grad = grad_.rows<T>(cols);
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
    finish(x_.samples * pieces, sums);
  }

  void pixels() {
    const Images to(out_.x);
    with_pixel_vectors<T>({&x_, &grad_, &to}, [&]<int N>(Width<N>) {
      const PixelPlan p = plan_pixels(x_.samples, x_.channels, x_.pixels, N);
      const Partials<A> sums(p.samples * p.chunks, p.channels, x_.tensor);
      const Config config{dim3(unsigned(p.blocks())), dim3(p.threads()), stream_};
      launch(pixel_sums<T, N>, config, norm_, p, given_.groups, x_.read<T>(), grad_.read<T>(),
             mean_, rstd_, sums.weight(), sums.bias());
      find_means(int(p.chunks), sums);
      const Pixels<T> pixels{mutable_data<T>(out_.x), to.sample_stride, to.pixel_stride};
      launch(pixels_gradient<T, N>, {config.grid, config.block, stream_, 0, true}, norm_, p,
             given_.groups, x_.read<T>(), grad_.read<T>(), mean_, rstd_, means_, pixels);
      finish(p.samples * p.chunks, sums);
    });
  }

 private:
  void find_means(int parts, const Partials<A>& sums) {
    const RowPlan plan =
        plan_groups(x_.samples * given_.groups, parts * (x_.channels / given_.groups));
    launch(group_means<T>, {dim3(plan.blocks()), dim3(kRowBlock), stream_, 0, true}, plan, norm_,
           given_.groups, parts, sums.weight(), sums.bias(), means_);
  }

  void finish(int64_t parts, const Partials<A>& sums) {
    const int height = parts <= 16 ? 4 : 32;
    const auto add_up = [&](const Tensor& to, const Tensor* other, const A* from) {
      dispatch(dtype_of(to), [&]<class Out>(Type<Out>) {
        const dim3 grid(unsigned(ceil_div(x_.channels, 32)), other == nullptr ? 1 : 2);
        launch(finish_sums<A, Out>, {grid, dim3(32 * height), stream_}, from, parts * x_.channels,
               int(parts), x_.channels, mutable_data<Out>(to),
               other == nullptr ? nullptr : mutable_data<Out>(*other));
      });
    };
    const bool both =
        given_.weight && given_.bias && dtype_code(*given_.weight) == dtype_code(*given_.bias);
    if (given_.weight) add_up(out_.weight, both ? &out_.bias : nullptr, sums.weight());
    if (given_.bias && !both) add_up(out_.bias, nullptr, sums.bias());
  }

  const Given& given_;
  const GroupNorm<T>& norm_;
  const Images &x_, &grad_;
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
  const Given given{weight_, bias_, groups, eps, silu};
  given.check(x_);
  OPFORGE_CHECK(
      same_device(grad_y, x_) && same_shape(grad_y, x_) && dtype_code(grad_y) == dtype_code(x_),
      "group_norm_backward: grad_y and x differ in device, shape or dtype");
  const DeviceGuard guard(x_.get_device_index());
  const int64_t none = 0;
  const auto gradient_of = [&](const std::optional<Tensor>& param) {
    return param ? empty(sizes(*param), *param) : empty({&none, 1}, x_);
  };
  const Gradients out{empty_like(x_), gradient_of(weight_), gradient_of(bias_)};
  if (x_.numel() == 0) {
    fill_zero(out.weight);
    fill_zero(out.bias);
    return {out.x, out.weight, out.bias};
  }
  Images x(x_);
  Kind kind = kind_of(x, Images(out.x));
  Gradients to = out;
  if (kind == Kind::other) {
    x = Images(contiguous(x_));
    to.x = empty(sizes(x_), x_);
    kind = Kind::planes;
  }
  Images grad(grad_y);
  if (kind == Kind::planes ? !grad.are_planes : !grad.are_pixels) {
    const Tensor copy = empty_like(to.x);
    copy_into(copy, grad_y);
    grad = Images(copy);
  }
  Results statistics{no_statistic(x_), mean, rstd};
  for (const Tensor* one : {&mean, &rstd}) {
    OPFORGE_CHECK(
        one->numel() == 0 || (one->numel() == x.samples * groups && same_device(*one, x_) &&
                              one->is_contiguous() && dtype_code(*one) == accumulator_dtype(x_)),
        "group_norm_backward: mean and rstd must be the forward's");
  }
  if (mean.numel() == 0 || rstd.numel() == 0) {
    statistics = {no_statistic(x_), statistic(x_, groups), statistic(x_, groups)};
    normalise(given, x, kind, statistics);
  }
  const ParamView weight = as_param(given.weight, x.tensor), bias = as_param(given.bias, x.tensor);
  dispatch(dtype_of(x.tensor), [&]<class T>(Type<T>) {
    const GroupNorm<T> norm = make_norm<T>(given, weight, bias, x);
    BackwardRun<T> run(given, norm, x, grad, statistics, to);
    kind == Kind::planes ? run.planes() : run.pixels();
  });
  if (to.x.const_data_ptr() != out.x.const_data_ptr()) copy_into(out.x, to.x);
  return {out.x, out.weight, out.bias};
}

OPFORGE_IMPL(group_norm, group_norm_cuda)
OPFORGE_IMPL(group_norm_backward, group_norm_backward_cuda)

}  // namespace opforge
