// SPDX-License-Identifier: Apache-2.0
// What the host sides of layer_norm and rms_norm share on CPU and GPU: arguments, checks and
// allocation. Centered: layer_norm, which takes the mean off and has a bias.
#pragma once

#include <opforge/host.h>

#include <optional>

namespace opforge {

// A prologue or epilogue, as the schema counts them: `before` and `after`.
enum class Stage : int64_t { none = 0, relu = 1, dropout = 2, relu_dropout = 3 };

inline Stage as_stage(int64_t code) {
  OPFORGE_CHECK(code >= 0 && code <= 3, "norm: before and after must be from 0 to 3");
  return Stage(code);
}
inline bool has_relu(Stage stage) { return stage == Stage::relu || stage == Stage::relu_dropout; }
inline bool has_dropout(Stage stage) {
  return stage == Stage::dropout || stage == Stage::relu_dropout;
}

constexpr int64_t kNone = 0;
constexpr std::span<const int64_t> kNothing{&kNone, 1};  // the shape of what is not returned

// What forward and backward are given besides tensors of x's shape.
struct NormArguments {
  const char* op;
  std::optional<Tensor> weight, bias, seed;
  double eps, offset;
  Stage prologue, epilogue;
  double p;

  bool drops() const { return has_dropout(prologue) || has_dropout(epilogue); }

  void check(const Tensor& x) const {
    OPFORGE_CHECK(x.dim() >= 1, op, ": x must have a dim");
    for (const std::optional<Tensor>* param : {&weight, &bias}) {
      OPFORGE_CHECK(!*param || (same_device(x, **param) && (*param)->dim() == 1 &&
                                (*param)->size(0) == x.size(x.dim() - 1)),
                    op, ": weight and bias must hold one value per column of x");
    }
    OPFORGE_CHECK(!drops() || (seed && same_device(*seed, x) && seed->dim() == 1 &&
                               seed->numel() == 2 && dtype_code(*seed) == aoti_torch_dtype_int64()),
                  op, ": seed must be two int64 on the device of x");
    OPFORGE_CHECK(eps > 0 && eps < INFINITY, op, ": eps must be positive");
    OPFORGE_CHECK(p >= 0 && p <= 1, op, ": p must be from 0 to 1");
  }
};

inline int64_t count_rows(const Tensor& x) {
  int64_t rows = 1;
  for (const int64_t n : sizes(x).first(size_t(x.dim() - 1))) rows *= n;
  return rows;
}

struct NormResult {
  Tensor y, h, mean, rstd;
};

template <bool Centered>
NormResult allocate_result(const NormArguments& given, const Tensor& x,
                           const std::optional<Tensor>& residual, bool save) {
  given.check(x);
  OPFORGE_CHECK(!residual || (same_device(x, *residual) && same_shape(x, *residual) &&
                              dtype_code(x) == dtype_code(*residual)),
                given.op, ": residual must be like x");
  const auto shape = sizes(x), kept = save ? shape.first(shape.size() - 1) : kNothing;
  const int32_t wide = accumulator_dtype(x);
  return {empty(shape, x), empty(residual ? shape : kNothing, x),
          empty(Centered ? kept : kNothing, wide, x), empty(kept, wide, x)};
}

// What a backward gets of the forward; the schema says when a tensor is missing or empty.
struct NormSaved {
  std::optional<Tensor> x;
  bool summed;  // there was a residual: h is saved
  Tensor h, mean, rstd;

  // What was normalised, or x if that is only a function of it.
  const Tensor& values() const { return summed ? h : *x; }
  bool has_statistics() const { return rstd.numel() > 0; }
  // Whether the prologue's relu needs x in addition to h.
  bool needs_x(const NormArguments& given) const { return summed && has_relu(given.prologue); }
};

struct NormGradients {
  Tensor x, weight, bias, residual;
};

// `grad_h` is that of h, which is an output only if there was a residual.
template <bool Centered>
NormGradients allocate_gradients(const NormArguments& given, const Tensor& grad_y,
                                 const std::optional<Tensor>& grad_h, const NormSaved& saved) {
  OPFORGE_CHECK((saved.x || saved.summed) && (saved.x || !saved.needs_x(given)), given.op,
                "_backward: what the forward saved is missing");
  const Tensor& like = saved.values();
  given.check(like);
  for (const Tensor* other : {&grad_y, grad_h ? &*grad_h : &grad_y, saved.x ? &*saved.x : &like}) {
    OPFORGE_CHECK(same_device(like, *other) && same_shape(like, *other) &&
                      dtype_code(like) == dtype_code(*other),
                  given.op, "_backward: the gradients differ from x in device, shape or dtype");
  }
  const auto fits = [&](const Tensor& statistic) {
    return statistic.numel() == count_rows(like) && same_device(statistic, like) &&
           dtype_code(statistic) == accumulator_dtype(like);
  };
  OPFORGE_CHECK(!saved.has_statistics() || (fits(saved.rstd) && (!Centered || fits(saved.mean))),
                given.op,
                "_backward: what the forward saved of each row has another size or dtype");
  const auto for_param = [&](const std::optional<Tensor>& param) {
    return param ? empty(sizes(*param), *param) : empty(kNothing, like);
  };
  // Without a prologue the gradient of residual is that of x.
  const bool own_residual = saved.summed && given.prologue != Stage::none;
  const NormGradients out{empty(sizes(like), like), for_param(given.weight), for_param(given.bias),
                          empty(own_residual ? sizes(like) : kNothing, like)};
  if (like.numel() == 0) {
    fill_zero(out.weight);
    fill_zero(out.bias);
  }
  return out;
}

}  // namespace opforge
