// SPDX-License-Identifier: Apache-2.0
// Launches the kernels of a formula: elements, rows and columns. For cuda.cu files; cpu_host.h has
// the same functions for the CPU.
#pragma once

#include <opforge/families/formula/operands.h>
#include <opforge/host/rows.h>

#include <opforge/families/formula/columns.cuh>
#include <opforge/families/formula/elements.cuh>
#include <opforge/families/formula/rows.cuh>

namespace opforge {

// Every element of the outputs, which are contiguous and of one shape, from the inputs, which are
// broadcast to it.
template <int Outs, class F, class... In>
void each_element(const Whole<Outs>& out, const F& f, const In&... in) {
  constexpr int N = sizeof...(In);
  const Tensor& y = out.tensor[0];
  const DeviceGuard guard(y.get_device_index());
  const auto run = [&](const Layout<N + 1>& layout, const auto&... in) {
    dispatch(dtype_of(y), [&]<class T>(Type<T>) {
      std::array<T*, Outs> to;
      for (int k = 0; k < Outs; ++k) to[k] = mutable_data<T>(out.tensor[k]);
      if constexpr (Outs == 1) {
        elementwise<T, N>(layout, to[0], {data<T>(in)...}, f, current_stream(y));
      } else {
        elements<T, N, Outs>(layout, to, {data<T>(in)...}, f, current_stream(y));
      }
    });
  };
  const auto layout =
      flatten<N + 1>(sizes(y), {sizes(y), sizes(in)...}, {strides(y), strides(in)...});
  if (layout.fits) return run(layout, in...);
  const std::array<Tensor, N> copies = {expand_copy(in, sizes(y))...};
  [&]<size_t... K>(std::index_sequence<K...>) {
    run(flatten<N + 1>(sizes(y), {sizes(y), sizes(copies[K])...},
                       {strides(y), strides(copies[K])...}),
        copies[K]...);
  }(std::make_index_sequence<N>());
}

// A result that is small, from values between two kernels: each input has as many elements, or one.
// Computed in the wider type, and rounded once.
template <class F, class... In>
void each_value(const Tensor& out, const F& f, const In&... in) {
  constexpr int N = sizeof...(In);
  if (out.numel() == 0) return;
  const DeviceGuard guard(out.get_device_index());
  const std::array<Tensor, N> wide = {widened(in)...};
  const Tensor made = between(shape_of(out), out);
  const auto layout = layout_of_values(out, wide);
  const auto run = [&]<class A>(Type<A>) {
    [&]<size_t... K>(std::index_sequence<K...>) {
      elementwise<A, N>(layout, mutable_data<A>(made), {data<A>(wide[K])...}, f,
                        current_stream(out));
    }(std::make_index_sequence<N>());
  };
  dtype_of(out) == DType::f64 ? run(Type<double>{}) : run(Type<float>{});
  copy_into(out, made);
}

namespace detail {

// Values per row or column, contiguous. `kept` holds copies until the launch.
template <class T>
GivenValues<T> given_values(const Tensor& x, int64_t count, std::vector<Tensor>& kept) {
  kept.push_back(contiguous(x));
  const Tensor& tensor = kept.back();
  const bool wide = sizeof(T) == 2 && dtype_code(tensor) == accumulator_dtype(tensor);
  return {tensor.const_data_ptr(), wide, x.numel() == 1 && count != 1 ? 0 : 1};
}

template <class T, size_t N, int M>
void give_values(const std::array<Tensor, N>& from, int64_t count, std::vector<Tensor>& kept,
                 GivenValues<T> (&to)[M]) {
  for (size_t k = 0; k < N; ++k) to[k] = given_values<T>(from[k], count, kept);
}

}  // namespace detail

// New rows and numbers per row, for the rows of x. See rows.cuh for f.
template <class F, int Wholes, int Columns, int RowsGiven, int Outs, int RowOuts>
void each_row(const Tensor& x, const F& f, const Whole<Wholes>& in,
              const PerColumn<Columns>& of_column, const PerRow<RowsGiven>& of_row,
              const Whole<Outs>& out, const PerRow<RowOuts>& row_out) {
  const int64_t rows = count_rows(x), cols = sizes(x).back();
  if (rows == 0 || (cols == 0 && RowOuts == 0)) return;
  const DeviceGuard guard(x.get_device_index());
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    FormulaRows<T, F, Wholes, Columns, RowsGiven, Outs, RowOuts> visitor;
    std::vector<Tensor> kept;
    kept.reserve(Columns + RowsGiven);
    std::array<std::optional<RowsView>, Wholes + Outs> views;  // some may be copies
    for (int k = 0; k < Wholes; ++k) {
      views[k] = as_rows(in.tensor[k]);
      visitor.in[k] = views[k]->template read<T>();
    }
    for (int k = 0; k < Outs; ++k) {
      views[Wholes + k] = as_rows(out.tensor[k]);
      visitor.out[k] = mutable_data<T>(out.tensor[k]);
    }
    detail::give_values(of_column.tensor, cols, kept, visitor.of_column);
    detail::give_values(of_row.tensor, rows, kept, visitor.of_row);
    for (int k = 0; k < RowOuts; ++k) {
      const Tensor& to = row_out.tensor[k];
      visitor.row_out[k] = {to.mutable_data_ptr(),
                            sizeof(T) == 2 && dtype_code(to) != dtype_code(x)};
    }
    visitor.cols = cols;
    visitor.f = f;
    [&]<size_t... K>(std::index_sequence<K...>) {
      with_row_vectors<T>({&*views[K]...}, [&]<int N>(Width<N>, bool ragged) {
        map_rows<N>(rows, cols, ragged, visitor, current_stream(x));
      });
    }(std::make_index_sequence<Wholes + Outs>());
  });
}

// Sums down the columns of the rows x cols matrix x, and results for its elements. See columns.cuh
// for f. Without elements, x tells the dtype, and the columns are one.
template <class F, int Wholes, int Columns, int RowsGiven, int Outs>
void sum_each_column(const Tensor& x, const F& f, const Whole<Wholes>& in,
                     const PerColumn<Columns>& of_column, const PerRow<RowsGiven>& of_row,
                     const Whole<Outs>& out, const Tensor& sum) {
  constexpr bool alone = Wholes == 0;
  const int64_t rows = count_rows(x), cols = alone ? 1 : sizes(x).back();
  if (rows == 0 || cols == 0) return fill_zero(sum);
  const DeviceGuard guard(x.get_device_index());
  const auto run = [&]<class T, class Out>(Type<T>, Type<Out>) {
    FormulaColumns<T, Out, F, Wholes, Columns, RowsGiven, Outs> visitor;
    std::vector<Tensor> kept;
    kept.reserve(Columns + RowsGiven);
    std::array<std::optional<MatrixView>, Wholes + Outs> views;
    Matrix<const T> like{nullptr, 1, 1};
    for (int k = 0; k < Wholes; ++k) {
      views[k] = as_matrix(in.tensor[k]);
      visitor.in[k] = views[k]->template read<T>();
    }
    for (int k = 0; k < Outs; ++k) {
      views[Wholes + k] = as_matrix(out.tensor[k]);
      visitor.out[k] = views[Wholes + k]->template write<T>();
    }
    if constexpr (!alone) like = views[Outs > 0 ? Wholes : 0]->template read<T>();
    detail::give_values(of_column.tensor, cols, kept, visitor.of_column);
    detail::give_values(of_row.tensor, rows, kept, visitor.of_row);
    visitor.f = f;
    const auto launch_with = [&]<int N>(Width<N>) {
      const auto p = plan_columns<T, N>(1, rows, cols, like);
      const int64_t words = p.workspace();
      const Tensor partial = empty({&words, 1}, accumulator_dtype(x), x);
      sum_columns<N>(p, visitor, mutable_data<compute_t<T>>(partial), mutable_data<Out>(sum),
                     current_stream(x));
    };
    if constexpr (alone) {
      launch_with(Width<1>{});
    } else {
      [&]<size_t... K>(std::index_sequence<K...>) {
        with_vectors<T>({views[K]->template read<T>()...}, launch_with);
      }(std::make_index_sequence<Wholes + Outs>());
    }
  };
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    if (sizeof(T) == 2 && dtype_code(sum) != dtype_code(x)) {
      run(Type<T>{}, Type<compute_t<T>>{});
    } else {
      run(Type<T>{}, Type<T>{});
    }
  });
}

}  // namespace opforge
