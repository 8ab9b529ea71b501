// SPDX-License-Identifier: Apache-2.0
// The host side of the gradients of layer_norm and rms_norm on the GPU, after the checks and the
// allocation in families/norm/host.h: operands, which kernel, launches.
#pragma once

#include <opforge/families/norm/cuda_host.h>
#include <opforge/host/partial_sums.h>

#include <opforge/families/norm/backward.cuh>
#include <opforge/families/norm/long.cuh>

namespace opforge {

// The forward's statistics, or the same once more if it did not save them.
template <bool Centered>
NormResult saved_statistics(const NormArguments& given, const NormSaved& saved) {
  const Tensor& like = saved.values();
  const Tensor none = empty(kNothing, like);
  if (saved.has_statistics()) return {none, none, contiguous(saved.mean), contiguous(saved.rstd)};
  const int32_t wide = accumulator_dtype(like);
  const int64_t rows[1] = {count_rows(like)};
  const NormResult found{none, none,
                         empty(Centered ? std::span<const int64_t>{rows} : kNothing, wide, like),
                         empty(rows, wide, like)};
  NormArguments alone = given;
  alone.weight = alone.bias = std::nullopt;
  alone.offset = 0;
  if (saved.summed) alone.prologue = Stage::none;
  alone.epilogue = Stage::none;
  launch_forward<Centered>(alone, like, std::nullopt, found);
  return found;
}

// The least that a kernel must be compiled for.
template <bool Centered>
BackwardKind backward_kind(const NormArguments& given, bool summed) {
  if (given.prologue == Stage::none && given.epilogue == Stage::none) {
    return summed ? BackwardKind::residual : BackwardKind::plain;
  }
  if (Centered && !summed && !has_dropout(given.prologue)) {
    if (given.epilogue == Stage::none) return BackwardKind::relu;
    if (given.epilogue == Stage::dropout) return BackwardKind::dropout;
  }
  return BackwardKind::any;
}

template <class T, bool Centered>
class NormBackwardRun {
  using A = compute_t<T>;

 public:
  NormBackwardRun(const NormArguments& given, const Tensor& grad_y,
                  const std::optional<Tensor>& grad_h, const NormSaved& saved,
                  const NormResult& statistics, const NormGradients& out)
      : given_(given),
        like_(saved.values()),
        out_(out),
        cols_(like_.size(like_.dim() - 1)),
        rows_(like_.numel() / cols_),
        weight_(as_param(given.weight, like_)),
        bias_(as_param(given.bias, like_)),
        sources_{as_rows(grad_y), as_rows(like_)},
        stream_(current_stream(like_)) {
    if (grad_h) sources_.push_back(as_rows(*grad_h));
    if (saved.needs_x(given)) sources_.push_back(as_rows(*saved.x));
    set_sources();
    p_.grad_x = mutable_data<T>(out.x);
    p_.grad_residual = data_or_null<T>(out.residual);
    p_.mean = Centered ? data<A>(statistics.mean) : nullptr;
    p_.rstd = data<A>(statistics.rstd);
    p_.weight = weight_.read();
    p_.bias = bias_.read();
    p_.prologue = relu_dropout<A>(given, given.prologue, 0);
    p_.epilogue = relu_dropout<A>(given, given.epilogue, 1);
    p_.summed = saved.summed;
    p_.has_grad_h = grad_h.has_value();
    p_.has_x = saved.needs_x(given);
    p_.offset = A(given.offset);
    p_.share = A(1) / A(cols_);
  }

  void run() {
    const auto choose = [&]<BackwardKind K>(std::integral_constant<BackwardKind, K>) {
      if constexpr (Centered || (K != BackwardKind::relu && K != BackwardKind::dropout)) {
        const bool taken =
            cols_ % kVec<T> == 0 ? launch_tiles<K, false>() : launch_tiles<K, true>();
        if (!taken) launch_pieces();
      }
    };
    with_one_of<T, BackwardKind::plain, BackwardKind::relu, BackwardKind::residual,
                BackwardKind::dropout, BackwardKind::any>(
        backward_kind<Centered>(given_, p_.summed), choose);
    PartialSums<A>{p_.weight_sums, p_.bias_sums, parts_, cols_}.finish(out_.weight, out_.bias, true,
                                                                       stream_);
  }

 private:
  // Vectors must begin at the same columns in all operands, and in the result.
  void set_sources() {
    const RowsView to = as_rows(out_.x);
    p_.ring.sources = int(sources_.size());
    for (size_t i = 0; i < sources_.size(); ++i) {
      RowsView& source = sources_[i];
      if (!aligned_alike<T>(source, to)) source = as_rows(clone(source.tensor));
      p_.ring.source[i] = source.template read<T>();
      p_.ring.end[i] = end_of<T>(source, cols_);
      contiguous_ = contiguous_ && source.tensor.is_contiguous();
    }
  }

  // Room for the sums of weight and bias, a row of each for every part.
  void allocate_sums(int64_t parts) {
    parts_ = parts;
    const int64_t shape[3] = {Centered ? 2 : 1, parts, cols_};
    sums_ = empty(shape, accumulator_dtype(like_), like_);
    p_.weight_sums = given_.weight ? mutable_data<A>(sums_) : nullptr;
    p_.bias_sums = Centered && given_.bias ? mutable_data<A>(sums_) + parts * cols_ : nullptr;
  }

  // False: rows are too long for a cluster.
  template <BackwardKind kind, bool Ragged>
  bool launch_tiles() {
    const auto kernel = norm_backward_kernel<T, Centered, kind, Ragged>;
    constexpr int kRows = kRowsPerThread<T, Centered, kind>;
    if (!plan_backward(rows_, cols_, kRows, false, contiguous_, p_) &&
        !(can_cluster(kernel) && plan_backward(rows_, cols_, kRows, true, contiguous_, p_))) {
      return false;
    }
    const int64_t parts = p_.parts();
    allocate_sums(parts);
    p_.jump = (Ragged ? 1 : parts) * p_.ring.height * p_.classes;
    p_.step = p_.jump * cols_;
    launch(kernel,
           {dim3(unsigned(parts * p_.plan.cluster)), dim3(p_.plan.block + kWarp), stream_,
            p_.shared_bytes(), false, p_.plan.cluster},
           p_);
    return true;
  }

  // See families/norm/long.cuh.
  void launch_pieces() {
    T *grad_weight = nullptr, *grad_bias = nullptr;
    p_.weight_sums = p_.bias_sums = nullptr;
    const int32_t dtype = dtype_code(like_);
    const bool alike = dtype_code(out_.weight) == dtype && dtype_code(out_.bias) == dtype;
    if (rows_ > 1 || !alike) {
      allocate_sums(1);
    } else {  // of one row there is nothing to add up
      if (given_.weight) grad_weight = mutable_data<T>(out_.weight);
      if (Centered && given_.bias) grad_bias = mutable_data<T>(out_.bias);
    }
    p_.plan = {rows_, cols_, kRowThreads, 1, kRowThreads, false};
    const int pieces = long_pieces(cols_);
    OPFORGE_CHECK(rows_ * pieces < int64_t(1) << 31, given_.op, "_backward: x has too many rows");
    const int64_t shape[3] = {rows_, pieces, 2};
    const Tensor of_pieces = empty(shape, accumulator_dtype(like_), like_);
    auto* const dots = reinterpret_cast<Dots<A, true>*>(mutable_data<A>(of_pieces));
    Config config{dim3(unsigned(rows_ * pieces)), dim3(kRowThreads), stream_};
    launch(norm_backward_dots<T, Centered>, config, p_, pieces, dots, grad_weight, grad_bias);
    config.overlap_previous = true;
    launch(norm_backward_piece<T, Centered>, config, p_, pieces, dots);
    if (p_.weight_sums != nullptr || p_.bias_sums != nullptr) {
      const dim3 grid(unsigned(ceil_div(cols_, 256)));
      launch(norm_backward_column<T>, {grid, dim3(256), stream_}, p_);
    }
  }

  const NormArguments& given_;
  const Tensor& like_;
  const NormGradients& out_;
  const int64_t cols_, rows_;
  const ParamView weight_, bias_;
  std::vector<RowsView> sources_;  // in the order of NormBackward's ring
  const cudaStream_t stream_;
  bool contiguous_ = true;
  Tensor sums_;
  int64_t parts_ = 1;
  NormBackward<T> p_;
};

template <bool Centered>
NormGradients norm_backward_cuda(const NormArguments& given, const Tensor& grad_y,
                                 const std::optional<Tensor>& grad_of_h, const NormSaved& saved) {
  const std::optional<Tensor> grad_h = saved.summed ? grad_of_h : std::nullopt;
  const NormGradients out = allocate_gradients<Centered>(given, grad_y, grad_h, saved);
  if (grad_y.numel() == 0) return out;
  const DeviceGuard guard(grad_y.get_device_index());
  const NormResult statistics = saved_statistics<Centered>(given, saved);
  dispatch(dtype_of(grad_y), [&]<class T>(Type<T>) {
    NormBackwardRun<T, Centered>(given, grad_y, grad_h, saved, statistics, out).run();
  });
  return out;
}

}  // namespace opforge
