// SPDX-License-Identifier: Apache-2.0
// Launches algorithms/row_functions.cuh over tensors of one shape, dtype and device, whose rows lie
// along the last dim. For cuda.cu files.
#pragma once

#include <opforge/host/rows.h>

#include <opforge/algorithms/row_functions.cuh>

namespace opforge {

namespace detail {

// The visitor gets rows of all inputs, and is run with vectors if they and `aligned` allow it.
template <class T, class Visitor, int Inputs>
void visit_rows(Visitor visitor, const Tensor (&in)[Inputs], const Tensor* aligned) {
  const Tensor& x = in[0];
  const DeviceGuard guard(x.get_device_index());
  std::optional<RowsView> views[Inputs + 1];  // kept until the launch: some may be copies
  for (int k = 0; k < Inputs; ++k) {
    views[k] = as_rows(in[k]);
    visitor.in[k] = views[k]->template read<T>();
  }
  views[Inputs] = aligned ? as_rows(*aligned) : *views[0];
  visitor.cols = sizes(x).back();
  int64_t rows = 1;
  for (const int64_t n : sizes(x).first(sizes(x).size() - 1)) rows *= n;
  [&]<size_t... K>(std::index_sequence<K...>) {
    with_row_vectors<T>({&*views[K]...}, [&]<int N>(Width<N>, bool ragged) {
      map_rows<N>(rows, visitor.cols, ragged, visitor, current_stream(x));
    });
  }(std::make_index_sequence<Inputs + 1>());
}

}  // namespace detail

// out, of the shape of the inputs without their last dim (or with 1 there), gets f.settle(…) of
// each row. T is the element type of all of them.
template <class T, int Inputs, class F>
void number_per_row(const F& f, const Tensor (&in)[Inputs], const Tensor& out) {
  if (out.numel() == 0) return;
  NumberPerRow<T, Inputs, F> visitor;
  visitor.f = f;
  visitor.out = mutable_data<T>(out);
  detail::visit_rows<T>(visitor, in, nullptr);
}

// The outputs, contiguous and of the inputs' shape, get the numbers of f.result(…).
template <class T, int Inputs, int Outputs, class F>
void new_rows(const F& f, const Tensor (&in)[Inputs], const Tensor (&out)[Outputs]) {
  if (out[0].numel() == 0) return;
  NewRows<T, Inputs, Outputs, F> visitor;
  visitor.f = f;
  bool alike = true;
  for (int k = 0; k < Outputs; ++k) {
    visitor.out[k] = mutable_data<T>(out[k]);
    alike = alike && misalignment(visitor.out[k]) == misalignment(visitor.out[0]);
  }
  OPFORGE_CHECK(alike, "opforge: new tensors are aligned differently");
  detail::visit_rows<T>(visitor, in, &out[0]);
}

}  // namespace opforge
