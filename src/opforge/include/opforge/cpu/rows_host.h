// SPDX-License-Identifier: Apache-2.0
// Tensors as the rows of cpu/rows.h. For cpu.cpp files.
#pragma once

#include <opforge/cpu/rows.h>
#include <opforge/host.h>

#include <algorithm>
#include <array>
#include <utility>

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

// Calls body(row, in...) for every row of tensors of one shape, which are not empty, with the
// number of the row and where it begins in each tensor; on torch's threads.
template <class T, class Body, class... In>
void for_each_row(const Body& body, const Tensor& x, const In&... in) {
  constexpr size_t N = 1 + sizeof...(In);
  const std::array<RowsView, N> views = {as_rows(x), as_rows(in)...};
  const int64_t cols = sizes(x).back(), rows = x.numel() / cols;
  [&]<size_t... K>(std::index_sequence<K...>) {
    const std::array<Rows<T>, N> read = {views[K].template read<T>()...};
    parallel_for(rows, std::max<int64_t>(1, kGrain / cols), [&](int64_t row, int64_t end) {
      RowsFrom<T> at[N] = {RowsFrom<T>(read[K], row)...};
      for (; row < end; ++row) {
        body(row, at[K].row()...);
        (at[K].next(), ...);
      }
    });
  }(std::make_index_sequence<N>());
}

}  // namespace opforge
