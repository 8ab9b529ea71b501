// SPDX-License-Identifier: Apache-2.0
// Tensors as the rows of cpu/rows.h. For cpu.cpp files.
#pragma once

#include <opforge/cpu/rows.h>
#include <opforge/host.h>

namespace opforge {

// A tensor as rows: itself, or a copy if its last dim is not contiguous.
struct RowsView {
  Tensor tensor;
  Layout<1> leading;

  template <class T>
  Rows<T> read() const {
    return {data<T>(tensor), leading};
  }
};

inline RowsView as_rows(const Tensor& x) {
  const auto size = sizes(x), stride = strides(x);
  const size_t last = size.size() - 1;
  const RowsView view{x, flatten_in_order(size.first(last), stride.first(last))};
  const bool gaps = size[last] > 1 && stride[last] != 1;
  return gaps || !view.leading.fits ? as_rows(contiguous(x)) : view;
}

}  // namespace opforge
