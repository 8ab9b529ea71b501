// SPDX-License-Identifier: Apache-2.0
// softmax and log_softmax on the CPU: from tensors to rows.
#pragma once

#include <opforge/cpu/rows_host.h>
#include <opforge/families/softmax/cpu.h>
#include <opforge/families/softmax/host.h>

namespace opforge {

template <Result result>
Tensor softmax_forward(const char* op, const Tensor& x, const std::optional<Tensor>& mask,
                       double scale, bool causal) {
  constexpr bool Log = result == Result::logarithms;
  const auto run = [&]<class T>(Type<T>, const SoftmaxRows& r, const RowsView& from,
                                const std::optional<MaskView>& added, const Tensor& y) {
    using A = compute_t<T>;
    const auto with_mask = [&]<class M>(const Mask<M>& read) {
      softmax_rows<Log>(r.rows, r.cols, from.read<T>(), read, A(scale), Causal{r.queries},
                        mutable_data<T>(y));
    };
    if (!added) {
      with_mask(Mask<T>{});
    } else if (dtype_of(added->view.tensor) == dtype_of(x)) {
      with_mask(Mask<T>{added->view.read<T>(), added->step});
    } else {
      with_mask(Mask<A>{added->view.read<A>(), added->step});
    }
  };
  return make_softmax(op, x, mask, causal, accumulator_dtype(x), run);
}

template <Result result>
Tensor softmax_backward(const char* op, const Tensor& grad_y, const Tensor& y, double scale,
                        bool causal) {
  constexpr bool Log = result == Result::logarithms;
  const auto run = [&]<class T>(Type<T>, const SoftmaxRows& r, const RowsView& grads,
                                const RowsView& values, const Tensor& grad_x) {
    softmax_gradient_rows<Log>(r.rows, r.cols, grads.read<T>(), values.read<T>(),
                               compute_t<T>(scale), Causal{r.queries}, mutable_data<T>(grad_x));
  };
  return make_softmax_gradient(op, grad_y, y, causal, run);
}

}  // namespace opforge
