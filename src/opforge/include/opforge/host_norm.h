// SPDX-License-Identifier: Apache-2.0
// The host side of layer_norm and rms_norm: check → allocate → dispatch → launch.
#pragma once

#include <opforge/host_rows.h>

#include <opforge/norm_long.cuh>

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
  Around make(int64_t what, int which) const {
    Around result;
    result.relu = (what & 1) != 0;
    result.dropout = (what & 2) != 0;
    if (!result.dropout) return result;
    result.seed = data<int64_t>(*seed) + which * strides(*seed)[0];
    result.threshold = drop_threshold(p);
    result.factor = p < 1 ? 1 / (1 - p) : 0;
    return result;
  }
};

// Calls f with the Extras that are needed, as a type. Doubles get all of them, to compile less.
template <class T, class F>
void with_extras(bool any, bool dropout, const F& f) {
  if constexpr (sizeof(T) < 8) {
    if (!any) return f(std::integral_constant<Extras, Extras::none>{});
    if (!dropout) return f(std::integral_constant<Extras, Extras::no_dropout>{});
  }
  f(std::integral_constant<Extras, Extras::all>{});
}

inline void check_param(const char* name, const Tensor& x, const std::optional<Tensor>& param) {
  OPFORGE_CHECK(!param || (same_device(x, *param) && param->dim() == 1 &&
                           param->size(0) == x.size(x.dim() - 1)),
                name, ": weight and bias must hold one value per column of x");
}

struct NormResult {
  Tensor y, h, mean, rstd;
};

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
  const ParamView weight = as_param(weight_, x), bias = as_param(bias_, x);
  const RowsView from = as_rows(x), to = as_rows(out.y);
  const RowsView other = residual ? as_rows(*residual) : to;
  const int64_t cols = shape.back(), rows = x.numel() / cols;
  const bool extras = residual || around.before != 0 || around.after != 0;
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    with_extras<T>(extras, around.dropout(), [&]<Extras E>(std::integral_constant<Extras, E>) {
      using A = compute_t<T>;
      NormForward<T, Centered, E> visitor;
      visitor.x = from.read<T>();
      if (residual) visitor.residual = other.read<T>();
      visitor.h = residual ? mutable_data<T>(out.h) : nullptr;
      visitor.y = mutable_data<T>(out.y);
      visitor.mean = save && Centered ? mutable_data<A>(out.mean) : nullptr;
      visitor.rstd = save ? mutable_data<A>(out.rstd) : nullptr;
      visitor.weight = weight.read();
      visitor.bias = bias.read();
      visitor.before = around.make(around.before, 0);
      visitor.after = around.make(around.after, 1);
      visitor.offset = A(offset);
      visitor.eps = A(eps);
      visitor.share = A(1) / A(cols);
      visitor.cols = cols;
      with_row_vectors<T>({&to, &from, &other}, [&]<int N>(Width<N>, bool ragged) {
        map_rows<N>(rows, cols, ragged, visitor, current_stream(x));
      });
    });
  });
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

template <class T>
const T* end_of(const RowsView& v, int64_t cols) {
  int64_t last = cols;
  for (int d = 0; d < v.leading.rank; ++d) last += (v.leading.size[d] - 1) * v.leading.stride[0][d];
  return data<T>(v.tensor) + last;
}

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
  OPFORGE_CHECK(!has_stats || saved.rstd.numel() == rows, name, "_backward: rstd has another size");
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
  const bool extras = saved.summed || around.before != 0 || around.after != 0;
  dispatch(dtype_of(like), [&]<class T>(Type<T>) {
    with_extras<T>(extras, around.dropout(), [&]<Extras E>(std::integral_constant<Extras, E>) {
      using A = compute_t<T>;
      const auto kernel = norm_backward<T, Centered, E>;
      NormBackward<T> p;
      p.centered = Centered;
      p.ring.sources = int(sources.size());
      bool contiguous = true;
      for (size_t i = 0; i < sources.size(); ++i) {
        // Vectors must begin at the same columns in all of them, and in the result.
        if (!aligned_alike<T>(sources[i], to)) sources[i] = as_rows(clone(sources[i].tensor));
        p.ring.source[i] = sources[i].template read<T>();
        p.ring.end[i] = end_of<T>(sources[i], cols);
        contiguous = contiguous && sources[i].tensor.is_contiguous();
      }
      const bool ragged = cols % kVec<T> != 0;
      bool fits = plan_backward(rows, cols, false, ragged, contiguous, p);
      if (!fits && can_cluster(kernel))
        fits = plan_backward(rows, cols, true, ragged, contiguous, p);
      p.grad_x = mutable_data<T>(out.x);
      p.grad_residual = other_residual ? mutable_data<T>(out.residual) : nullptr;
      p.mean = has_stats && Centered ? data<A>(saved.mean) : nullptr;
      p.rstd = has_stats ? data<A>(saved.rstd) : nullptr;
      p.weight = weight.read();
      p.bias = bias.read();
      p.before = around.make(around.before, 0);
      p.after = around.make(around.after, 1);
      p.summed = saved.summed;
      p.has_grad_h = grad_h.has_value();
      p.has_x = relu_beside_h;
      p.offset = A(offset);
      p.eps = A(eps);
      p.share = A(1) / A(cols);
      const int64_t parts = fits ? p.parts() : 1;
      const int64_t shape[3] = {Centered ? 2 : 1, parts, cols};
      const Tensor sums = empty(shape, accumulator_dtype(like), like);
      p.weight_sums = saved.weight ? mutable_data<A>(sums) : nullptr;
      p.bias_sums = Centered && saved.bias ? mutable_data<A>(sums) + parts * cols : nullptr;
      const cudaStream_t stream = current_stream(like);
      if (fits) {
        launch(kernel,
               {dim3(unsigned(parts * p.plan.cluster)), dim3(p.plan.block), stream,
                p.shared_bytes(), false, p.plan.cluster},
               p);
      } else {
        p.plan = {rows, cols, kRowThreads, 1, kRowThreads, false};
        const int64_t twice[2] = {2, rows};
        const Tensor stats = empty(twice, accumulator_dtype(like), like);
        A *const means = mutable_data<A>(stats), *const rstds = means + rows;
        launch(norm_backward_row<T, Centered>, {dim3(unsigned(rows)), dim3(kRowThreads), stream}, p,
               means, rstds);
        launch(norm_backward_column<T>, {dim3(unsigned(ceil_div(cols, 256))), dim3(256), stream}, p,
               means, rstds);
      }
      const auto finish = [&](const std::optional<Tensor>& param, const A* from, const Tensor& to) {
        if (!param) return;
        dispatch(dtype_of(*param), [&]<class Out>(Type<Out>) {
          const int height = parts <= 16 ? 4 : 32;
          launch(finish_sums<A, Out>,
                 {dim3(unsigned(ceil_div(cols, 32))), dim3(32 * height), stream, 0, true}, from,
                 int(parts), cols, mutable_data<Out>(to));
        });
      };
      finish(saved.weight, p.weight_sums, out.weight);
      finish(saved.bias, p.bias_sums, out.bias);
    });
  });
  return out;
}

}  // namespace opforge
