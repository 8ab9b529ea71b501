// SPDX-License-Identifier: Apache-2.0
// The host side of softmax and log_softmax on the CPU: check → allocate → dispatch → run.
#pragma once

#include <opforge/cpu/rows_host.h>
#include <opforge/families/softmax/cpu.h>

namespace opforge {

inline Causal make_causal(const char* name, const Tensor& x, bool causal) {
  OPFORGE_CHECK(!causal || x.dim() >= 2, name, ": causal needs queries and keys");
  return {causal ? x.size(x.dim() - 2) : 0};
}

// A mask stretched to the rows of x.
struct MaskView {
  RowsView view;
  int64_t step = 1;

  template <class M>
  Mask<M> read() const {
    return {view.read<M>(), step};
  }
};

inline MaskView stretch(const char* name, const Tensor& given, const Tensor& x) {
  Tensor mask = given;
  if (dtype_of(mask) != dtype_of(x) && dtype_code(mask) != accumulator_dtype(x)) {
    mask = empty(sizes(given), accumulator_dtype(x), x);
    copy_into(mask, given);
  }
  const auto shape = sizes(x), own = sizes(mask), own_strides = strides(mask);
  OPFORGE_CHECK(own.size() <= shape.size(), name, ": mask must broadcast to x");
  int64_t strides[kMaxDims] = {};
  const size_t missing = shape.size() - own.size(), last = shape.size() - 1;
  for (size_t d = 0; d < own.size(); ++d) {
    OPFORGE_CHECK(own[d] == 1 || own[d] == shape[d + missing], name, ": mask must broadcast to x");
    if (own[d] != 1) strides[d + missing] = own_strides[d];
  }
  const Layout<1> leading = flatten_in_order(shape.first(last), {strides, last});
  if (!leading.fits) return stretch(name, expand_copy(mask, shape), x);
  return {{mask, leading}, strides[last]};
}

template <bool Log>
Tensor softmax_forward(const char* name, const Tensor& x, const std::optional<Tensor>& mask,
                       double scale, bool causal) {
  OPFORGE_CHECK(x.dim() >= 1, name, ": x must have a dim");
  const Causal visible = make_causal(name, x, causal);
  const Tensor y = empty(sizes(x), x);
  std::optional<MaskView> added;
  if (mask) added = stretch(name, *mask, x);
  if (x.numel() == 0) return y;
  const RowsView from = as_rows(x);
  const int64_t cols = x.size(x.dim() - 1), rows = x.numel() / cols;
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    using A = compute_t<T>;
    const auto run = [&]<class M>(const Mask<M>& read) {
      softmax_forward<Log>(rows, cols, from.read<T>(), read, A(scale), visible, mutable_data<T>(y));
    };
    if (added && dtype_of(added->view.tensor) != dtype_of(x)) {
      run(added->read<A>());
    } else {
      run(added ? added->read<T>() : Mask<T>{});
    }
  });
  return y;
}

template <bool Log>
Tensor softmax_backward(const char* name, const Tensor& grad_y, const Tensor& y, double scale,
                        bool causal) {
  OPFORGE_CHECK(y.dim() >= 1 && same_shape(grad_y, y) && dtype_code(grad_y) == dtype_code(y), name,
                "_backward: grad_y differs from y in shape or dtype");
  const Causal visible = make_causal(name, y, causal);
  const Tensor grad_x = empty(sizes(y), y);
  if (y.numel() == 0) return grad_x;
  const RowsView grads = as_rows(grad_y), values = as_rows(y);
  const int64_t cols = y.size(y.dim() - 1), rows = y.numel() / cols;
  dispatch(dtype_of(y), [&]<class T>(Type<T>) {
    softmax_backward<Log>(rows, cols, grads.read<T>(), values.read<T>(), compute_t<T>(scale),
                          visible, mutable_data<T>(grad_x));
  });
  return grad_x;
}

}  // namespace opforge
