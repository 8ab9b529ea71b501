// SPDX-License-Identifier: Apache-2.0
// softmax and log_softmax on a GPU: which kernel takes which rows.
#pragma once

#include <opforge/families/softmax/host.h>
#include <opforge/host/rows.h>

#include <opforge/families/softmax/backward.cuh>
#include <opforge/families/softmax/forward.cuh>

namespace opforge {

inline Causal make_causal(const SoftmaxRows& rows) {
  Causal result;
  if (rows.queries == 0) return result;
  result.queries = rows.queries;
  result.many = rows.rows >= int64_t(1) << 31;
  if (!result.many) result.by_queries = Divider<uint32_t>(result.queries);
  return result;
}

inline Mask make_mask(const MaskView& added) {
  Mask mask;
  mask.values = {added.view.tensor.const_data_ptr(), dtype_of(added.view.tensor) == DType::f32};
  mask.step = added.step;
  mask.rows = Walk<uint32_t, 1>(added.view.leading);
  return mask;
}

// Whether the vectors of a mask are those of other rows.
template <class T>
bool is_alike(const MaskView& mask, const RowsView& other) {
  return mask.step == 1 && dtype_of(mask.view.tensor) == dtype_of(other.tensor) &&
         aligned_alike<T>(mask.view, other);
}

// Calls f with what a kernel must be compiled for, as a type. Doubles get less choice, to compile
// less.
template <class T, class F>
void with_masked(bool alike, const F& f) {
  if constexpr (sizeof(T) < 8) {
    if (alike) return f(std::integral_constant<Masked, Masked::alike>{});
  }
  f(std::integral_constant<Masked, Masked::any>{});
}

// Whether the scale, given as an exponent of 2, is one that SoftmaxPlain takes: for a sum of
// exponentials it takes differences before they are scaled, and those of the largest numbers may be
// infinite, which is right unless the scale is tiny.
inline bool is_plain(float exponent) { return exponent >= 1e-30f && exponent < INFINITY; }

template <Result result>
Tensor softmax_forward(const char* op, const Tensor& x, const std::optional<Tensor>& mask,
                       double scale, bool causal) {
  constexpr bool Log = result == Result::logarithms;
  const DeviceGuard guard(x.get_device_index());
  const auto run = [&]<class T>(Type<T>, const SoftmaxRows& r, const RowsView& from,
                                const std::optional<MaskView>& added, const Tensor& y) {
    const RowsView to = as_rows(y);
    with_row_vectors<T>({&to, &from}, [&]<int N>(Width<N>, bool ragged) {
      using Rare = SoftmaxForward<T, Log, Masked::any>;
      const bool rare = N == 1 || !can_hold<N, Rare>(r.rows, r.cols, ragged);
      const auto map = [&](auto visitor) {
        visitor.x = from.read<T>();
        visitor.y = mutable_data<T>(y);
        visitor.scale = compute_t<T>(scale);
        visitor.cols = r.cols;
        map_rows<N>(r.rows, r.cols, ragged, visitor, current_stream(x));
      };
      if constexpr (N > 1 && sizeof(T) < 8) {
        SoftmaxPlain<T, Log> visitor;
        visitor.exponent = float(scale * 1.4426950408889634);
        if (!rare && !added && !causal && is_plain(visitor.exponent)) return map(visitor);
      }
      with_masked<T>(!rare && (!added || is_alike<T>(*added, to)),
                     [&]<Masked M>(std::integral_constant<Masked, M>) {
                       SoftmaxForward<T, Log, M> visitor;
                       if (added) visitor.mask = make_mask(*added);
                       visitor.causal = make_causal(r);
                       map(visitor);
                     });
    });
  };
  return make_softmax(op, x, mask, causal, aoti_torch_dtype_float32(), run);
}

template <Result result>
Tensor softmax_backward(const char* op, const Tensor& grad_y, const Tensor& y, double scale,
                        bool causal) {
  constexpr bool Log = result == Result::logarithms;
  const DeviceGuard guard(y.get_device_index());
  const auto run = [&]<class T>(Type<T>, const SoftmaxRows& r, const RowsView& grads,
                                const RowsView& values, const Tensor& grad_x) {
    const RowsView to = as_rows(grad_x);
    with_row_vectors<T>({&to, &grads, &values}, [&]<int N>(Width<N>, bool ragged) {
      const auto map = [&]<bool Hides>(std::bool_constant<Hides>) {
        SoftmaxBackward<T, Log, Hides> visitor;
        visitor.grad_y = grads.read<T>();
        visitor.y = values.read<T>();
        visitor.grad_x = mutable_data<T>(grad_x);
        visitor.causal = make_causal(r);
        visitor.scale = compute_t<T>(scale);
        visitor.cols = r.cols;
        map_rows<N>(r.rows, r.cols, ragged, visitor, current_stream(y));
      };
      if constexpr (sizeof(T) < 8 && N > 1) {
        const bool held = can_hold<N, SoftmaxBackward<T, Log, true>>(r.rows, r.cols, ragged);
        if (held && !causal) return map(std::false_type{});
      }
      map(std::true_type{});
    });
  };
  return make_softmax_gradient(op, grad_y, y, causal, run);
}

}  // namespace opforge
