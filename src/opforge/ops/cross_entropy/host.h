// SPDX-License-Identifier: Apache-2.0
// What the host sides of cross_entropy share on CPU and GPU: checks, new tensors.
#pragma once

#include <opforge/host.h>
#if defined(USE_CUDA)
#include <opforge/host/rows.h>
#else
#include <opforge/cpu/rows_host.h>
#endif

#include <cmath>

namespace opforge {

enum class Reduction : int64_t { none, mean, sum };

// A tensor with one number per row of the logits, seen as rows of one column: the tensor itself, or
// a copy where its dims do not merge into two.
inline RowsView per_row(const Tensor& x) {
  const Layout<1> layout = flatten_in_order(sizes(x), strides(x));
  // In Rows, an outer stride of 0 would mean that there is no outer dim.
  const bool simple =
      layout.fits && (layout.rank <= 1 || (layout.rank == 2 && layout.stride[0][1] != 0 &&
                                           layout.count() < (int64_t(1) << 31)));
  return simple ? RowsView{x, layout} : per_row(contiguous(x));
}

struct CrossEntropyOptions {
  int64_t ignore_index;
  double smoothing, z_loss;
  Reduction reduction;

  void check(const Tensor& logits, const Tensor& target) const {
    OPFORGE_CHECK(logits.dim() >= 1 && logits.size(logits.dim() - 1) > 0,
                  "cross_entropy: logits must have a class");
    const auto leading = sizes(logits).first(size_t(logits.dim() - 1)), labels = sizes(target);
    OPFORGE_CHECK(same_device(logits, target) && dtype_code(target) == aoti_torch_dtype_int64() &&
                      std::equal(leading.begin(), leading.end(), labels.begin(), labels.end()),
                  "cross_entropy: target must have an int64 label for each row of logits");
    OPFORGE_CHECK(smoothing >= 0 && smoothing <= 1, "cross_entropy: smoothing is not from 0 to 1");
    OPFORGE_CHECK(z_loss >= 0 && z_loss < INFINITY, "cross_entropy: z_loss must not be negative");
    OPFORGE_CHECK(reduction >= Reduction::none && reduction <= Reduction::sum,
                  "cross_entropy: no such reduction");
  }
};

struct CrossEntropyResult {
  Tensor loss, peak, log_sum, count;

  CrossEntropyResult(const Tensor& logits, const Tensor& target, Reduction reduction)
      : loss(make(logits,
                  reduction == Reduction::none ? sizes(target) : std::span<const int64_t>())),
        peak(make(logits, sizes(target))),
        log_sum(make(logits, sizes(target))),
        count(empty(reduction == Reduction::mean ? std::span<const int64_t>() : nothing(),
                    aoti_torch_dtype_int64(), logits)) {}

 private:
  static Tensor make(const Tensor& logits, std::span<const int64_t> shape) {
    return empty(shape, accumulator_dtype(logits), logits);
  }
  static std::span<const int64_t> nothing() {
    static constexpr int64_t none = 0;
    return {&none, 1};
  }
};

// What the backward gets of the forward, as the kernels read it.
struct CrossEntropySaved {
  RowsView grad, target;
  Tensor peak, log_sum, count;

  CrossEntropySaved(const CrossEntropyOptions& options, const Tensor& grad_loss,
                    const Tensor& logits, const Tensor& target_, const Tensor& peak_,
                    const Tensor& log_sum_, const Tensor& count_)
      : grad(per_row(grad_loss)),
        target(per_row(target_)),
        peak(contiguous(peak_)),
        log_sum(contiguous(log_sum_)),
        count(count_) {
    options.check(logits, target_);
    const int32_t wide = accumulator_dtype(logits);
    for (const Tensor* saved : {&peak, &log_sum}) {
      OPFORGE_CHECK(
          same_device(logits, *saved) && same_shape(*saved, target_) && dtype_code(*saved) == wide,
          "cross_entropy_backward: what the forward saved does not fit logits");
    }
    OPFORGE_CHECK(same_device(logits, grad_loss) && dtype_code(grad_loss) == wide &&
                      (options.reduction == Reduction::none ? same_shape(grad_loss, target_)
                                                            : grad_loss.numel() == 1),
                  "cross_entropy_backward: grad_loss differs from loss in device, shape or dtype");
    OPFORGE_CHECK(
        options.reduction != Reduction::mean || (same_device(logits, count) && count.numel() == 1 &&
                                                 dtype_code(count) == aoti_torch_dtype_int64()),
        "cross_entropy_backward: count must be one int64");
  }
};

// Whether rows of `cols` adjacent elements, with these strides, do not overlap.
inline bool rows_are_apart(const Layout<1>& leading, int64_t cols) {
  int64_t extent = cols;
  for (int d = 0; d < leading.rank; ++d) {
    if (leading.stride[0][d] < extent) return false;
    extent = leading.stride[0][d] * leading.size[d];
  }
  return true;
}

}  // namespace opforge
