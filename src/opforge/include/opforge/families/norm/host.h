// SPDX-License-Identifier: Apache-2.0
// The host side of layer_norm and rms_norm: check → allocate → dispatch → launch.
#pragma once

#include <opforge/host/rows.h>

#include <opforge/families/norm/long.cuh>
#include <opforge/families/norm/stream.cuh>

namespace opforge {

// Relu and dropout around a norm, as the schema has them.
struct AroundArguments {
  const std::optional<Tensor>& seed;
  int64_t before, after;
  double p;

  void check(const char* name, const Tensor& x) const {
    const bool dropout = ((before | after) & 2) != 0;
    OPFORGE_CHECK(!dropout || (seed && same_device(*seed, x) && seed->dim() == 1 &&
                               seed->numel() == 2 && dtype_code(*seed) == aoti_torch_dtype_int64()),
                  name, ": seed must be two int64 on the device of x");
    OPFORGE_CHECK(p >= 0 && p <= 1, name, ": p must be from 0 to 1");
  }
  bool dropout() const { return ((before | after) & 2) != 0; }
  template <class A>
  Around<A> make(int64_t what, int which) const {
    Around<A> result;
    result.relu = (what & 1) != 0;
    result.dropout = (what & 2) != 0;
    if (!result.dropout) return result;
    result.seed = data<int64_t>(*seed) + which * strides(*seed)[0];
    result.threshold = drop_threshold(p);
    result.factor = A(kept_scale(p));
    return result;
  }
};

// Calls f with one of some values, as a type; doubles get the last of them, to compile less.
template <class T, auto First, auto... Rest, class F>
void with_one_of(decltype(First) value, const F& f) {
  if constexpr (sizeof...(Rest) > 0) {
    if (sizeof(T) == 8 || value != First) return with_one_of<T, Rest...>(value, f);
  }
  f(std::integral_constant<decltype(First), First>{});
}

inline void check_param(const char* name, const Tensor& x, const std::optional<Tensor>& param) {
  OPFORGE_CHECK(!param || (same_device(x, *param) && param->dim() == 1 &&
                           param->size(0) == x.size(x.dim() - 1)),
                name, ": weight and bias must hold one value per column of x");
}

struct NormResult {
  Tensor y, h, mean, rstd;
};

// Whether the parameters that there are can be read in vectors of this dtype.
inline bool all_are(int32_t dtype, std::initializer_list<const ParamView*> params) {
  for (const ParamView* p : params) {
    if (p->tensor && (dtype_code(*p->tensor) != dtype ||
                      misalignment(static_cast<const char*>(p->tensor->const_data_ptr())) != 0)) {
      return false;
    }
  }
  return true;
}

// Whether norm_stream took the rows: long ones with nothing around them, of layer_norm also with a
// relu before, of rms_norm only ragged ones.
template <class T, bool Centered>
bool stream_rows(const RowsView& from, const Param& weight, const Param& bias,
                 const AroundArguments& around, double eps, double offset, bool ragged,
                 const NormResult& out) {
  using A = compute_t<T>;
  const Tensor& x = from.tensor;
  const int64_t cols = x.size(x.dim() - 1);
  NormStream<T> p;
  const bool relu = around.before == 1;
  if ((around.before != 0 && !(Centered && relu)) || around.after != 0) return false;
  // Shorter rows leave map_rows enough in flight, and those of rms_norm take few registers there.
  if (cols < 16384 || (!ragged && (!Centered || cols * sizeof(T) <= 32768))) return false;
  if (!plan_stream<T>(x.numel() / cols, cols, ragged, kNormLag<T, Centered> + 1, p)) return false;
  p.ring.source[0] = from.read<T>();
  p.ring.end[0] = end_of<T>(from, cols);
  p.y = mutable_data<T>(out.y);
  p.mean = out.mean.numel() > 0 ? mutable_data<A>(out.mean) : nullptr;
  p.rstd = out.rstd.numel() > 0 ? mutable_data<A>(out.rstd) : nullptr;
  p.weight = weight;
  p.bias = bias;
  p.offset = weight.data != nullptr ? A(offset) : A(0);
  p.eps = A(eps);
  p.share = A(1) / A(cols);
  const cudaStream_t stream = current_stream(x);
  if constexpr (Centered) {
    if (relu) {
      return ragged ? launch_stream(norm_stream<T, true, true, true>, p, stream)
                    : launch_stream(norm_stream<T, true, false, true>, p, stream);
    }
    if (!ragged) return launch_stream(norm_stream<T, true, false, false>, p, stream);
  }
  return launch_stream(norm_stream<T, Centered, true, false>, p, stream);
}

// Into what is there of `out`: without a y, only the statistics.
template <bool Centered>
void normalise_rows(const Tensor& x, const std::optional<Tensor>& weight_,
                    const std::optional<Tensor>& bias_, const std::optional<Tensor>& residual,
                    const AroundArguments& around, double eps, double offset,
                    const NormResult& out) {
  const ParamView weight = as_param(weight_, x), bias = as_param(bias_, x);
  const bool writes = out.y.numel() > 0;
  const RowsView from = as_rows(x), to = writes ? as_rows(out.y) : from;
  const RowsView other = residual ? as_rows(*residual) : to;
  const int64_t cols = x.size(x.dim() - 1), rows = x.numel() / cols;
  const bool like_x = all_are(dtype_code(x), {&weight, &bias});
  const bool floats = all_are(aoti_torch_dtype_float32(), {&weight, &bias});
  const bool alone = around.before == 0 && around.after == 0;
  const bool relu = Centered && around.before == 1 && around.after == 0;
  const bool plain = writes && !residual && (alone || relu) && offset == 0 && like_x &&
                     weight.tensor && (!Centered || bias.tensor);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    with_row_vectors<T>({&to, &from, &other}, [&]<int N>(Width<N>, bool ragged) {
      if constexpr (N > 1 && sizeof(T) < 8) {
        if (writes && !residual &&
            stream_rows<T, Centered>(from, weight.read(), bias.read(), around, eps, offset, ragged,
                                     out)) {
          return;
        }
      }
      Extras extras = around.dropout() ? Extras::dropout : Extras::no_dropout;
      if (!(like_x || floats) || (around.dropout() && !writes)) extras = Extras::all;
      if (plain && N > 1) extras = alone ? Extras::none : Extras::relu;
      // What is rare is compiled once.
      using Rare = NormForward<T, Centered, Extras::all>;
      if (N == 1 || !can_hold<N, Rare>(rows, cols, ragged)) extras = Extras::all;
      const auto run = [&]<Extras E, class W>(std::integral_constant<Extras, E>, Type<W>) {
        using A = compute_t<T>;
        NormForward<T, Centered, E, W> visitor;
        visitor.x = from.read<T>();
        if (residual) visitor.residual = other.read<T>();
        visitor.h = residual ? mutable_data<T>(out.h) : nullptr;
        visitor.y = writes ? mutable_data<T>(out.y) : nullptr;
        visitor.mean = out.mean.numel() > 0 ? mutable_data<A>(out.mean) : nullptr;
        visitor.rstd = out.rstd.numel() > 0 ? mutable_data<A>(out.rstd) : nullptr;
        visitor.weight = weight.read();
        visitor.bias = bias.read();
        visitor.before = around.template make<A>(around.before, 0);
        visitor.after = around.template make<A>(around.after, 1);
        visitor.offset = weight.tensor ? A(offset) : A(0);
        visitor.eps = A(eps);
        visitor.share = A(1) / A(cols);
        visitor.cols = cols;
        map_rows<N>(rows, cols, ragged, visitor, current_stream(x));
      };
      const auto choose = [&]<Extras E>(std::integral_constant<Extras, E> e) {
        if constexpr ((E == Extras::no_dropout || E == Extras::dropout) && N > 1) {
          if (!like_x) return run(e, Type<float>{});
        }
        if constexpr (Centered || E != Extras::relu) run(e, Type<T>{});
      };
      with_one_of<T, Extras::none, Extras::relu, Extras::no_dropout, Extras::dropout, Extras::all>(
          extras, choose);
    });
  });
}

template <bool Centered>
NormResult norm_forward(const char* name, const Tensor& x, const std::optional<Tensor>& weight_,
                        const std::optional<Tensor>& bias_, const std::optional<Tensor>& residual,
                        const AroundArguments& around, double eps, double offset, bool save) {
  OPFORGE_CHECK(x.dim() >= 1, name, ": x must have a dim");
  OPFORGE_CHECK(!residual || (same_device(x, *residual) && same_shape(x, *residual) &&
                              dtype_code(x) == dtype_code(*residual)),
                name, ": residual must be like x");
  OPFORGE_CHECK(eps > 0 && eps < INFINITY, name, ": eps must be positive");
  check_param(name, x, weight_);
  check_param(name, x, bias_);
  around.check(name, x);
  const DeviceGuard guard(x.get_device_index());
  const auto shape = sizes(x), leading = shape.first(shape.size() - 1);
  const int64_t none = 0;
  const std::span<const int64_t> nothing{&none, 1}, kept = save ? leading : nothing;
  const int32_t wide = accumulator_dtype(x);
  const NormResult out{empty(shape, x), empty(residual ? shape : nothing, x),
                       empty(Centered ? kept : nothing, wide, x), empty(kept, wide, x)};
  if (x.numel() == 0) {  // rows of no columns have statistics, too
    fill_zero(out.mean);
    fill_zero(out.rstd);
    return out;
  }
  normalise_rows<Centered>(x, weight_, bias_, residual, around, eps, offset, out);
  return out;
}

// What the backward of a norm gets and gives; the schema says when a tensor is missing or empty.
struct NormSaved {
  std::optional<Tensor> x, weight, bias;
  bool summed;  // there was a residual: h is saved
  Tensor h, mean, rstd;
};

struct NormGradients {
  Tensor x, weight, bias, residual;
};

template <bool Centered>
NormGradients norm_backward(const char* name, const Tensor& grad_y,
                            const std::optional<Tensor>& grad_of_h, const NormSaved& saved,
                            const AroundArguments& around, double eps, double offset) {
  const std::optional<Tensor> grad_h = saved.summed ? grad_of_h : std::nullopt;
  const Tensor& like = saved.summed ? saved.h : *saved.x;
  const bool relu_beside_h = saved.summed && (around.before & 1) != 0;
  OPFORGE_CHECK(like.dim() >= 1 && (saved.summed || saved.x) && (!relu_beside_h || saved.x), name,
                "_backward: what the forward saved is missing");
  for (const Tensor* other : {&grad_y, grad_h ? &*grad_h : &grad_y, saved.x ? &*saved.x : &like}) {
    OPFORGE_CHECK(same_device(like, *other) && same_shape(like, *other) &&
                      dtype_code(like) == dtype_code(*other),
                  name, "_backward: the gradients differ from x in device, shape or dtype");
  }
  check_param(name, like, saved.weight);
  check_param(name, like, saved.bias);
  around.check(name, like);
  const int64_t cols = like.size(like.dim() - 1);
  int64_t rows = 1;
  for (const int64_t n : sizes(like).first(size_t(like.dim() - 1))) rows *= n;
  const bool has_stats = saved.rstd.numel() > 0;
  const auto check_statistic = [&](const Tensor& one) {
    OPFORGE_CHECK(
        one.numel() == rows && same_device(one, like) && dtype_code(one) == accumulator_dtype(like),
        name, "_backward: what the forward saved of each row has another size or dtype");
  };
  if (has_stats) check_statistic(saved.rstd);
  if (has_stats && Centered) check_statistic(saved.mean);
  const DeviceGuard guard(like.get_device_index());
  const int64_t none = 0;
  const std::span<const int64_t> nothing{&none, 1};
  const auto for_param = [&](const std::optional<Tensor>& param) {
    return param ? empty(sizes(*param), *param) : empty(nothing, like);
  };
  const bool other_residual = saved.summed && around.before != 0;
  const NormGradients out{empty(sizes(like), like), for_param(saved.weight), for_param(saved.bias),
                          empty(other_residual ? sizes(like) : nothing, like)};
  if (like.numel() == 0) {
    fill_zero(out.weight);
    fill_zero(out.bias);
    return out;
  }
  const ParamView weight = as_param(saved.weight, like), bias = as_param(saved.bias, like);
  std::vector<RowsView> sources{as_rows(grad_y), as_rows(like)};
  if (grad_h) sources.push_back(as_rows(*grad_h));
  if (relu_beside_h) sources.push_back(as_rows(*saved.x));
  const RowsView to = as_rows(out.x);
  const int32_t wide = accumulator_dtype(like);
  const int64_t leading[1] = {rows};
  NormResult statistics{empty(nothing, like), empty(nothing, like), contiguous(saved.mean),
                        contiguous(saved.rstd)};
  if (!has_stats) {
    statistics.mean = empty(Centered ? std::span<const int64_t>{leading} : nothing, wide, like);
    statistics.rstd = empty(leading, wide, like);
    const AroundArguments before{around.seed, saved.summed ? 0 : around.before, 0, around.p};
    normalise_rows<Centered>(like, {}, {}, {}, before, eps, 0, statistics);
  }
  dispatch(dtype_of(like), [&]<class T>(Type<T>) {
    using A = compute_t<T>;
    NormBackward<T> p;
    p.ring.sources = int(sources.size());
    bool contiguous = true;
    for (size_t i = 0; i < sources.size(); ++i) {
      // Vectors must begin at the same columns in all of them, and in the result.
      if (!aligned_alike<T>(sources[i], to)) sources[i] = as_rows(clone(sources[i].tensor));
      p.ring.source[i] = sources[i].template read<T>();
      p.ring.end[i] = end_of<T>(sources[i], cols);
      contiguous = contiguous && sources[i].tensor.is_contiguous();
    }
    p.grad_x = mutable_data<T>(out.x);
    p.grad_residual = other_residual ? mutable_data<T>(out.residual) : nullptr;
    p.mean = Centered ? data<A>(statistics.mean) : nullptr;
    p.rstd = data<A>(statistics.rstd);
    p.weight = weight.read();
    p.bias = bias.read();
    p.before = around.template make<A>(around.before, 0);
    p.after = around.template make<A>(around.after, 1);
    p.summed = saved.summed;
    p.has_grad_h = grad_h.has_value();
    p.has_x = relu_beside_h;
    p.offset = A(offset);
    p.share = A(1) / A(cols);
    const cudaStream_t stream = current_stream(like);
    int64_t parts = 1;
    Tensor sums;
    const auto make_sums = [&] {
      const int64_t shape[3] = {Centered ? 2 : 1, parts, cols};
      sums = empty(shape, wide, like);
      p.weight_sums = saved.weight ? mutable_data<A>(sums) : nullptr;
      p.bias_sums = Centered && saved.bias ? mutable_data<A>(sums) + parts * cols : nullptr;
    };
    const auto run = [&]<With W, bool Ragged>(std::integral_constant<With, W>,
                                              std::bool_constant<Ragged>) {
      const auto kernel = norm_backward<T, Centered, W, Ragged>;
      constexpr int kRows = kAbreast<T, Centered, W>;
      if (!plan_backward(rows, cols, kRows, false, contiguous, p) &&
          !(can_cluster(kernel) && plan_backward(rows, cols, kRows, true, contiguous, p))) {
        // Of one row there is nothing to add up.
        const bool alike =
            dtype_code(out.weight) == dtype_code(like) && dtype_code(out.bias) == dtype_code(like);
        T *grad_weight = nullptr, *grad_bias = nullptr;
        p.weight_sums = p.bias_sums = nullptr;
        if (rows > 1 || !alike) {
          make_sums();
        } else {
          if (saved.weight) grad_weight = mutable_data<T>(out.weight);
          if (Centered && saved.bias) grad_bias = mutable_data<T>(out.bias);
        }
        p.plan = {rows, cols, kRowThreads, 1, kRowThreads, false};
        const int pieces = long_pieces(cols);
        OPFORGE_CHECK(rows * pieces < int64_t(1) << 31, name, "_backward: x has too many rows");
        const int64_t shape[3] = {rows, pieces, 2};
        const Tensor of_pieces = empty(shape, wide, like);
        auto* const dots = reinterpret_cast<Dots<A, true>*>(mutable_data<A>(of_pieces));
        Config config{dim3(unsigned(rows * pieces)), dim3(kRowThreads), stream};
        launch(norm_backward_dots<T, Centered>, config, p, pieces, dots, grad_weight, grad_bias);
        config.overlap_previous = true;
        launch(norm_backward_piece<T, Centered>, config, p, pieces, dots);
        if (p.weight_sums != nullptr || p.bias_sums != nullptr) {
          const dim3 grid(unsigned(ceil_div(cols, 256)));
          launch(norm_backward_column<T>, {grid, dim3(256), stream}, p);
        }
        return;
      }
      parts = p.parts();
      make_sums();
      p.jump = (Ragged ? 1 : parts) * p.ring.height * p.classes;
      p.step = p.jump * cols;
      launch(kernel,
             {dim3(unsigned(parts * p.plan.cluster)), dim3(p.plan.block + kWarp), stream,
              p.shared_bytes(), false, p.plan.cluster},
             p);
    };
    With with = With::all;
    if (around.before == 0 && around.after == 0)
      with = saved.summed ? With::residual : With::nothing;
    if (Centered && !saved.summed && around.before < 2) {
      if (around.before == 1 && around.after == 0) with = With::relu;
      if (around.after == 2) with = With::dropout;
    }
    const auto choose = [&]<With W>(std::integral_constant<With, W> w) {
      if constexpr (Centered || (W != With::relu && W != With::dropout)) {
        cols % kVec<T> == 0 ? run(w, std::false_type{}) : run(w, std::true_type{});
      }
    };
    with_one_of<T, With::nothing, With::relu, With::residual, With::dropout, With::all>(with,
                                                                                        choose);
    const auto finish = [&](const Tensor& to, const Tensor* other, const A* from) {
      dispatch(dtype_of(to), [&]<class Out>(Type<Out>) {
        const int height = parts <= 16 ? 4 : 32;
        const dim3 grid(unsigned(ceil_div(cols, 32)), other == nullptr ? 1 : 2);
        launch(finish_sums<A, Out>, {grid, dim3(32 * height), stream, 0, true}, from, parts * cols,
               int(parts), cols, mutable_data<Out>(to),
               other == nullptr ? nullptr : mutable_data<Out>(*other));
      });
    };
    const bool both = p.weight_sums != nullptr && p.bias_sums != nullptr &&
                      dtype_code(out.weight) == dtype_code(out.bias);
    if (p.weight_sums != nullptr) finish(out.weight, both ? &out.bias : nullptr, p.weight_sums);
    if (p.bias_sums != nullptr && !both) finish(out.bias, nullptr, p.bias_sums);
  });
  return out;
}

}  // namespace opforge
