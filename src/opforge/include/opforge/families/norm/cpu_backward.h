// SPDX-License-Identifier: Apache-2.0
// The gradients of layer_norm and rms_norm on the CPU, see families/norm/cpu_forward.h. Includes no
// torch header.
#pragma once

#include <opforge/families/norm/cpu_forward.h>

namespace opforge {

template <class T>
struct NormBackward {
  using A = compute_t<T>;
  Rows<T> grad_y, h;           // h is x if it is made of x alone
  bool summed;                 // h is prologue(x) + residual
  Rows<T> grad_h, x;           // null where there is none; x, if the prologue's relu wants it
  const A *mean, *rstd;        // rstd is null: to be computed
  T *grad_x, *grad_residual;   // grad_residual is null if it is grad_x
  A *weight_sums, *bias_sums;  // a row for each block of rows; null: not wanted

  // Rows to a block. It depends on the shape alone, and so do the bits of the sums.
  static int64_t block(int64_t rows) { return std::clamp<int64_t>(rows / 64, 8, 64); }
};

template <bool Centered, class T>
void find_gradients(const Norm<T>& norm, const NormBackward<T>& p) {
  using A = compute_t<T>;
  using V = vec<T>;
  const int64_t rows = norm.rows, cols = norm.cols, block = p.block(rows);
  const bool makes_h = norm.prologue && !p.summed;  // in place of grad_x
  const bool streams = !makes_h && should_stream(p.grad_x, rows, cols);
  prefer_huge_pages(p.grad_x, norm.bytes());
  if (p.grad_residual != nullptr) prefer_huge_pages(p.grad_residual, norm.bytes());
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, block * cols));
  parallel_for(ceil_div(rows, block), grain, [&](int64_t part, int64_t end) {
    const auto passed = std::make_unique_for_overwrite<A[]>(size_t(cols));  // grad times weight
    int64_t row = part * block;
    RowsFrom<T> grads(p.grad_y, row), values(p.h, row), others(p.grad_h, row), inputs(p.x, row);
    for (; part < end; ++part) {
      A* const weight_sums = p.weight_sums == nullptr ? nullptr : p.weight_sums + part * cols;
      A* const bias_sums = p.bias_sums == nullptr ? nullptr : p.bias_sums + part * cols;
      if (weight_sums != nullptr) std::fill_n(weight_sums, cols, A(0));
      if (bias_sums != nullptr) std::fill_n(bias_sums, cols, A(0));
      for (const int64_t last = std::min(row + block, rows); row < last; ++row) {
        const T *const grad = grads.row(), *h = values.row();
        const T* const x = p.x.data == nullptr ? h : inputs.row();
        const T* const other = p.grad_h.data == nullptr ? nullptr : others.row();
        T* const grad_x = p.grad_x + row * cols;
        grads.next();
        values.next();
        const T *const next_grad = grads.row(), *const next_h = values.row();
        if (makes_h) {
          norm.make_h(x, nullptr, row, grad_x);
          h = grad_x;
        }
        const Scale<T> scale = p.rstd == nullptr
                                   ? scale_of<Centered>(h, cols, norm.eps)
                                   : Scale<T>{p.mean == nullptr ? A(0) : p.mean[row], p.rstd[row]};
        V inner_sum{}, sum{};
        norm.epilogue.visit_row(row * cols, cols, [&](int64_t j, auto n, const uint16_t* halves) {
          const V normed = scale.normed(h + j, n), factor = norm.factor(j, n);
          V v = load_lanes(grad + j, n);
          if (norm.epilogue)
            v = norm.epilogue.backward(v, norm.result(normed, factor, j, n), halves);
          if (weight_sums != nullptr) {
            store_lanes(weight_sums + j, n, fma(v, normed, load_lanes(weight_sums + j, n)));
          }
          if (bias_sums != nullptr) store_lanes(bias_sums + j, n, v + load_lanes(bias_sums + j, n));
          v *= factor;
          inner_sum = fma(v, normed, inner_sum);
          if constexpr (Centered) sum += v;
          store_lanes(passed.get() + j, n, v);
        });
        const A inner = sum_lanes<A>(inner_sum) / A(cols), average = sum_lanes<A>(sum) / A(cols);
        norm.prologue.visit_row(row * cols, cols, [&](int64_t j, auto n, const uint16_t* halves) {
          __builtin_prefetch(next_grad + j);  // memory is idle while a row is worked on
          __builtin_prefetch(next_h + j);
          const V normed = scale.normed(h + j, n);
          V v = fma(normed, -inner - V{}, load_lanes(passed.get() + j, n) - average) * scale.rstd;
          if (other != nullptr) v += load_lanes(other + j, n);
          if (p.grad_residual != nullptr) {
            store_lanes(p.grad_residual + row * cols + j, n, v);
          }
          if (norm.prologue) v = norm.prologue.backward(v, load_lanes(x + j, n), halves);
          stream_lanes(streams, grad_x + j, n, v);
        });
        others.next();
        inputs.next();
      }
    }
    finish_streaming();
  });
}

}  // namespace opforge
