// SPDX-License-Identifier: Apache-2.0
// The host side of layer_norm and rms_norm on the GPU, after the checks and the allocation in
// families/norm/host.h: which kernel takes the forward, with which operands.
#pragma once

#include <opforge/families/norm/host.h>
#include <opforge/host/rows.h>

#include <opforge/families/norm/forward.cuh>
#include <opforge/families/norm/stream.cuh>

namespace opforge {

// Calls f with one of some values, as a type; doubles get the last of them, to compile less.
template <class T, auto First, auto... Rest, class F>
void with_one_of(decltype(First) value, const F& f) {
  if constexpr (sizeof...(Rest) > 0) {
    if (sizeof(T) == 8 || value != First) return with_one_of<T, Rest...>(value, f);
  }
  f(std::integral_constant<decltype(First), First>{});
}

// A prologue (seed 0) or epilogue (seed 1).
template <class A>
ReluDropout<A> relu_dropout(const NormArguments& given, Stage stage, int seed) {
  ReluDropout<A> result;
  result.relu = has_relu(stage);
  result.dropout = has_dropout(stage);
  if (!result.dropout) return result;
  result.seed = data<int64_t>(*given.seed) + seed * strides(*given.seed)[0];
  result.threshold = drop_threshold(given.p);
  result.factor = A(kept_scale(given.p));
  return result;
}

template <class T>
T* data_or_null(const Tensor& x) {
  return x.numel() > 0 ? mutable_data<T>(x) : nullptr;
}

// A forward, with its parameters as kernels read them; they outlive the launch. Without a y only
// the statistics are wanted.
struct NormForwardRun {
  const NormArguments& given;
  const Tensor& x;
  const std::optional<Tensor>& residual;
  const NormResult& out;
  ParamView weight = as_param(given.weight, x), bias = as_param(given.bias, x);
  RowsView from = as_rows(x);
  int64_t cols = x.size(x.dim() - 1), rows = x.numel() / cols;

  bool writes() const { return out.y.numel() > 0; }
  // Whether the parameters that there are can be read in vectors of this dtype.
  bool params_are(int32_t dtype) const {
    for (const ParamView* p : {&weight, &bias}) {
      if (p->tensor && (dtype_code(*p->tensor) != dtype ||
                        misalignment(static_cast<const char*>(p->tensor->const_data_ptr())) != 0)) {
        return false;
      }
    }
    return true;
  }
  bool params_like_x() const { return params_are(dtype_code(x)); }
};

// The least that a kernel must be compiled for if rows are held, and read in vectors.
template <bool Centered>
ForwardKind kind_of(const NormForwardRun& run) {
  const NormArguments& given = run.given;
  const bool floats = run.params_are(aoti_torch_dtype_float32());
  if (!(run.params_like_x() || floats) || (given.drops() && !run.writes())) return ForwardKind::any;
  const bool every_param = run.weight.tensor && (!Centered || run.bias.tensor);
  if (run.writes() && !run.residual && given.epilogue == Stage::none && given.offset == 0 &&
      run.params_like_x() && every_param) {
    if (given.prologue == Stage::none) return ForwardKind::plain;
    if (Centered && given.prologue == Stage::relu) return ForwardKind::relu;
  }
  return given.drops() ? ForwardKind::dropout : ForwardKind::no_dropout;
}

// Whether norm_stream took the rows: long ones of a norm alone, of layer_norm also with a relu as
// its prologue, of rms_norm only ragged ones.
template <class T, bool Centered>
bool stream_rows(const NormForwardRun& run, bool ragged) {
  using A = compute_t<T>;
  const NormArguments& given = run.given;
  const int64_t rows = run.rows, cols = run.cols;
  const bool relu = given.prologue == Stage::relu;
  if (!run.writes() || run.residual || given.epilogue != Stage::none) return false;
  if (given.prologue != Stage::none && !(Centered && relu)) return false;
  // Shorter rows leave map_rows enough in flight, and those of rms_norm take few registers there.
  if (cols < 16384 || (!ragged && (!Centered || cols * sizeof(T) <= 32768))) return false;
  NormStream<T> p;
  if (!plan_stream<T>(rows, cols, ragged, kNormLag<T, Centered> + 1, p)) return false;
  p.ring.source[0] = run.from.read<T>();
  p.ring.end[0] = end_of<T>(run.from, cols);
  p.y = mutable_data<T>(run.out.y);
  p.mean = data_or_null<A>(run.out.mean);
  p.rstd = data_or_null<A>(run.out.rstd);
  p.weight = run.weight.read();
  p.bias = run.bias.read();
  p.offset = run.weight.tensor ? A(given.offset) : A(0);
  p.eps = A(given.eps);
  p.share = A(1) / A(cols);
  const cudaStream_t stream = current_stream(run.x);
  constexpr auto whole_rows = RowShape::whole, ragged_rows = RowShape::ragged;
  constexpr auto plain_kind = ForwardKind::plain, relu_kind = ForwardKind::relu;
  if constexpr (Centered) {
    if (relu) {
      return ragged ? launch_stream(norm_stream<T, Centered, ragged_rows, relu_kind>, p, stream)
                    : launch_stream(norm_stream<T, Centered, whole_rows, relu_kind>, p, stream);
    }
    if (!ragged) {
      return launch_stream(norm_stream<T, Centered, whole_rows, plain_kind>, p, stream);
    }
  }
  return launch_stream(norm_stream<T, Centered, ragged_rows, plain_kind>, p, stream);
}

template <int N, class T, bool Centered, ForwardKind kind, class W>
void map_norm(const NormForwardRun& run, const RowsView& added, bool ragged) {
  using A = compute_t<T>;
  const NormArguments& given = run.given;
  NormForward<T, Centered, kind, W> visitor;
  visitor.x = run.from.read<T>();
  if (run.residual) visitor.residual = added.read<T>();
  visitor.h = run.residual ? mutable_data<T>(run.out.h) : nullptr;
  visitor.y = run.writes() ? mutable_data<T>(run.out.y) : nullptr;
  visitor.mean = data_or_null<A>(run.out.mean);
  visitor.rstd = data_or_null<A>(run.out.rstd);
  visitor.weight = run.weight.read();
  visitor.bias = run.bias.read();
  visitor.prologue = relu_dropout<A>(given, given.prologue, 0);
  visitor.epilogue = relu_dropout<A>(given, given.epilogue, 1);
  visitor.offset = run.weight.tensor ? A(given.offset) : A(0);
  visitor.eps = A(given.eps);
  visitor.share = A(1) / A(run.cols);
  visitor.cols = run.cols;
  map_rows<N>(run.rows, run.cols, ragged, visitor, current_stream(run.x));
}

// Writes those tensors of `out` that are not empty.
template <bool Centered>
void launch_forward(const NormArguments& given, const Tensor& x,
                    const std::optional<Tensor>& residual, const NormResult& out) {
  const NormForwardRun run{given, x, residual, out};
  const RowsView to = run.writes() ? as_rows(out.y) : run.from;
  const RowsView added = residual ? as_rows(*residual) : to;
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    with_row_vectors<T>({&to, &run.from, &added}, [&]<int N>(Width<N>, bool ragged) {
      if constexpr (N > 1 && sizeof(T) < 8) {
        if (stream_rows<T, Centered>(run, ragged)) return;
      }
      // What is rare is compiled once.
      using Rare = NormForward<T, Centered, ForwardKind::any>;
      const bool rare = N == 1 || !can_hold<N, Rare>(run.rows, run.cols, ragged);
      const auto choose = [&]<ForwardKind K>(std::integral_constant<ForwardKind, K>) {
        if constexpr ((K == ForwardKind::no_dropout || K == ForwardKind::dropout) && N > 1) {
          if (!run.params_like_x()) return map_norm<N, T, Centered, K, float>(run, added, ragged);
        }
        if constexpr (Centered || K != ForwardKind::relu) {
          map_norm<N, T, Centered, K, T>(run, added, ragged);
        }
      };
      with_one_of<T, ForwardKind::plain, ForwardKind::relu, ForwardKind::no_dropout,
                  ForwardKind::dropout, ForwardKind::any>(
          rare ? ForwardKind::any : kind_of<Centered>(run), choose);
    });
  });
}

template <bool Centered>
NormResult norm_forward_cuda(const NormArguments& given, const Tensor& x,
                             const std::optional<Tensor>& residual, bool save) {
  const NormResult out = allocate_result<Centered>(given, x, residual, save);
  const DeviceGuard guard(x.get_device_index());
  if (x.numel() > 0) {
    launch_forward<Centered>(given, x, residual, out);
  } else {  // rows of no columns have statistics, too
    fill_zero(out.mean);
    fill_zero(out.rstd);
  }
  return out;
}

}  // namespace opforge
