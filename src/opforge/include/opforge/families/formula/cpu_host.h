// SPDX-License-Identifier: Apache-2.0
// The functions of cuda_host.h on the CPU: elements, rows and columns of a formula, a vector at a
// time. Numbers of a row fill a vector each, so that a formula has one type throughout.
#pragma once

#include <opforge/cpu/columns.h>
#include <opforge/cpu/row_sums.h>
#include <opforge/cpu/rows_host.h>
#include <opforge/families/formula/cpu.h>
#include <opforge/families/formula/operands.h>
#include <opforge/families/formula/values.h>

namespace opforge {

// As in cuda_host.h. Several outputs are made one after the other.
template <int Outs, class F, class... In>
void each_element(const Whole<Outs>& out, const F& f, const In&... in) {
  [&]<size_t... K>(std::index_sequence<K...>) {
    const auto one = [&]<size_t k>(std::integral_constant<size_t, k>) {
      over_elements(
          out.tensor[k],
          [&](const auto& layout, const Tensor& y, const auto&... in) {
            dispatch(dtype_of(y), [&]<class T>(Type<T>) {
              elementwise(layout, mutable_data<T>(y), {data<T>(in)...},
                          [&f](auto... v)
                            requires(sizeof...(v) == sizeof...(In))
                          { return Values<vec<T>, Outs>{f(v...)}[k]; });
            });
          },
          in...);
    };
    (one(std::integral_constant<size_t, K>()), ...);
  }(std::make_index_sequence<Outs>());
}

// As in cuda_host.h.
template <class F, class... In>
void each_value(const Tensor& out, const F& f, const In&... in) {
  constexpr int N = sizeof...(In);
  if (out.numel() == 0) return;
  const std::array<Tensor, N> wide = {widened(in)...};
  const Tensor made = between(shape_of(out), out);
  const auto layout = layout_of_values(out, wide);
  const auto run = [&]<class A>(Type<A>) {
    [&]<size_t... K>(std::index_sequence<K...>) {
      const A* const from[N] = {data<A>(wide[K])...};
      elementwise(layout, mutable_data<A>(made), from,
                  [&f](auto... v)
                    requires(sizeof...(v) == N)
                  { return f(v...); });
    }(std::make_index_sequence<N>());
  };
  dtype_of(out) == DType::f64 ? run(Type<double>{}) : run(Type<float>{});
  copy_into(out, made);
}

namespace detail {

// Values per row or column, in the element type or the one that is computed in.
template <class T>
struct Given {
  Tensor tensor;  // contiguous
  bool wide = false;
  int64_t stride = 1;  // 0: one value for all

  Given(const Tensor& x, int64_t count)
      : tensor(contiguous(x)),
        wide(sizeof(T) == 2 && dtype_code(x) == accumulator_dtype(x)),
        stride(x.numel() == 1 && count != 1 ? 0 : 1) {}
  vec<T> at(int64_t i) const {
    return wide ? load(data<compute_t<T>>(tensor) + i * stride, 0)
                : load(data<T>(tensor) + i * stride, 0);
  }
  template <class Lanes>
  OPFORGE_INLINE vec<T> read(int64_t i, Lanes lanes) const {
    if (stride == 0) return at(0);
    if (wide) return load_some(data<compute_t<T>>(tensor) + i, 1, int64_t(lanes));
    return load_lanes(data<T>(tensor) + i, lanes);
  }
};

template <class T, size_t N>
std::vector<Given<T>> given(const std::array<Tensor, N>& tensors, int64_t count) {
  std::vector<Given<T>> result;
  for (const Tensor& t : tensors) result.emplace_back(t, count);
  return result;
}

// One number per row or column.
template <class T>
void write_number(const Tensor& to, int64_t i, compute_t<T> value, bool wide) {
  if (wide) {
    mutable_data<compute_t<T>>(to)[i] = value;
  } else {
    mutable_data<T>(to)[i] = narrow<T>(value);
  }
}

// What the terms of a step come to over a row of n, in every lane. Sums are kept in double from
// block to block.
template <class T, class Term>
auto total_of_row(int64_t n, const Term& term) {
  using V = vec<T>;
  using Total = decltype(term(int64_t(), AllLanes<T>{}));
  constexpr int kCount = sizeof(Total) / sizeof(V);
  Total result;
  double sums[kCount] = {};
  for (int64_t begin = 0; begin < n; begin += kBlockTerms) {
    Total acc[4];
    visit_vectors<T>(begin, std::min(begin + kBlockTerms, n), [&](int k, int64_t j, auto lanes) {
      Total own = term(j, lanes);
      for (int i = 0; i < kCount; ++i) {
        if constexpr (Total::kLargest) {
          for (int64_t lane = lanes; lane < kLanes<T>; ++lane)
            own.value[i][lane] = Total().value[i][0];
        } else {
          own.value[i] = first_lanes<T>(own.value[i], lanes);
        }
      }
      acc[k] += own;
    });
    acc[0] += acc[1];
    acc[2] += acc[3];
    acc[0] += acc[2];
    if constexpr (Total::kLargest) {
      result += acc[0];
    } else {
      for (int i = 0; i < kCount; ++i) sums[i] += sum_lanes<compute_t<T>>(acc[0].value[i]);
    }
  }
  for (int i = 0; i < kCount; ++i) {
    if constexpr (Total::kLargest) {
      compute_t<T> largest = result.value[i][0];
      for (int lane = 1; lane < kLanes<T>; ++lane) {
        const compute_t<T> other = result.value[i][lane];
        if (other > largest || other != other) largest = other;
      }
      result.value[i] = largest - V{};
    } else {
      result.value[i] = compute_t<T>(sums[i]) - V{};
    }
  }
  return result;
}

template <int step, class T, class F, class Row, class Call>
OPFORGE_INLINE void take_steps(const F& f, Row& row, int64_t cols, const Call& call) {
  if constexpr (step < F::kSteps) {
    const auto total = total_of_row<T>(cols, [&](int64_t j, auto lanes) {
      return call(j, lanes, [&](auto... v) { return f.term(Step<step>(), row, v...); });
    });
    f.settle(Step<step>(), row, total);
    take_steps<step + 1, T>(f, row, cols, call);
  }
}

}  // namespace detail

template <class F, int Wholes, int Columns, int RowsGiven, int Outs, int RowOuts>
void each_row(const Tensor& x, const F& f, const Whole<Wholes>& in,
              const PerColumn<Columns>& of_column, const PerRow<RowsGiven>& of_row,
              const Whole<Outs>& out, const PerRow<RowOuts>& row_out) {
  const int64_t rows = count_rows(x), cols = sizes(x).back();
  if (rows == 0 || (cols == 0 && RowOuts == 0)) return;
  [&]<size_t... I, size_t... J, size_t... K>(std::index_sequence<I...>, std::index_sequence<J...>,
                                             std::index_sequence<K...>) {
    const std::array<RowsView, Wholes> views = {as_rows(in.tensor[I])...};
    dispatch(dtype_of(x), [&]<class T>(Type<T>) {
      using V = vec<T>;
      const std::array<Rows<T>, Wholes> read = {views[I].template read<T>()...};
      const auto columns = detail::given<T>(of_column.tensor, cols);
      const auto numbers = detail::given<T>(of_row.tensor, rows);
      for (const Tensor& y : out.tensor) {
        prefer_huge_pages(mutable_data<T>(y), rows * cols * int64_t(sizeof(T)));
      }
      const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, cols));
      parallel_for(rows, grain, [&](int64_t i, int64_t end) {
        RowsFrom<T> at[Wholes] = {RowsFrom<T>(read[I], i)...};
        for (; i < end; ++i, (at[I].next(), ...)) {
          const auto call = [&](int64_t j, auto lanes, const auto& g) {
            return g(load_lanes(at[I].row() + j, lanes)..., columns[J].read(j, lanes)...);
          };
          typename F::template Row<V> row{numbers[K].at(i)...};
          detail::take_steps<0, T>(f, row, cols, call);
          if constexpr (Outs > 0) {
            visit_vectors<T>(0, cols, [&](int, int64_t j, auto lanes) {
              const auto made = call(j, lanes, [&](auto... v) { return f.result(row, v...); });
              for (int k = 0; k < Outs; ++k) {
                store_lanes(mutable_data<T>(out.tensor[k]) + i * cols + j, lanes, made[k]);
              }
            });
          }
          if constexpr (RowOuts > 0) {
            const auto made = f.of_row(row);
            for (int k = 0; k < RowOuts; ++k) {
              const Tensor& to = row_out.tensor[k];
              detail::write_number<T>(to, i, made[k][0],
                                      sizeof(T) == 2 && dtype_code(to) != dtype_code(x));
            }
          }
        }
      });
    });
  }(std::make_index_sequence<Wholes>(), std::make_index_sequence<Columns>(),
    std::make_index_sequence<RowsGiven>());
}

template <class F, int Wholes, int Columns, int RowsGiven, int Outs>
void sum_each_column(const Tensor& x, const F& f, const Whole<Wholes>& in,
                     const PerColumn<Columns>& of_column, const PerRow<RowsGiven>& of_row,
                     const Whole<Outs>& out, const Tensor& sum) {
  const int64_t rows = count_rows(x), cols = Wholes == 0 ? 1 : sizes(x).back();
  if (rows == 0 || cols == 0) return fill_zero(sum);
  [&]<size_t... I, size_t... J, size_t... K>(std::index_sequence<I...>, std::index_sequence<J...>,
                                             std::index_sequence<K...>) {
    const std::array<MatrixView, Wholes> views = {as_matrix(in.tensor[I])...};
    const auto run = [&]<class T, class Out>(Type<T>, Type<Out>) {
      const std::array<Matrix<const T>, Wholes> from = {views[I].template read<T>()...};
      const auto columns = detail::given<T>(of_column.tensor, cols);
      const auto numbers = detail::given<T>(of_row.tensor, rows);
      sum_columns(
          rows, cols, mutable_data<Out>(sum),
          [&](int64_t row, int64_t col, int64_t n, sum_t<Out>* sums) {
            for (int64_t j = 0; j < n; j += kLanes<T>) {
              const int64_t lanes = std::min(kLanes<T>, n - j);
              const auto piece = [&](const Matrix<const T>& m) {
                const T* p = m.at(row, col + j);
                return lanes == kLanes<T> ? load(p, m.col_stride)
                                          : load_some(p, m.col_stride, lanes);
              };
              const Values<vec<T>, Outs + 1> made{
                  f(piece(from[I])..., columns[J].read(col + j, lanes)..., numbers[K].at(row)...)};
              for (int k = 0; k < Outs; ++k) {
                store_lanes(mutable_data<T>(out.tensor[k]) + row * cols + col + j, lanes, made[k]);
              }
              if (lanes == kLanes<T>) {
                add_to<Out>(sums + j, made[Outs]);
              } else {
                for (int64_t e = 0; e < lanes; ++e) sums[j + e] += made[Outs][e];
              }
            }
          });
    };
    dispatch(dtype_of(x), [&]<class T>(Type<T>) {
      if (sizeof(T) == 2 && dtype_code(sum) != dtype_code(x)) {
        run(Type<T>{}, Type<compute_t<T>>{});
      } else {
        run(Type<T>{}, Type<T>{});
      }
    });
  }(std::make_index_sequence<Wholes>(), std::make_index_sequence<Columns>(),
    std::make_index_sequence<RowsGiven>());
}

}  // namespace opforge
