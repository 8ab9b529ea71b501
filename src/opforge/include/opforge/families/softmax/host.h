// SPDX-License-Identifier: Apache-2.0
// The host side of softmax and log_softmax: check → allocate → dispatch → launch.
#pragma once

#include <opforge/host/rows.h>

#include <opforge/families/softmax/kernel.cuh>

namespace opforge {

inline Causal make_causal(const char* name, const Tensor& x, bool causal, int64_t rows) {
  OPFORGE_CHECK(!causal || x.dim() >= 2, name, ": causal needs queries and keys");
  Causal result;
  if (!causal || rows == 0) return result;
  result.queries = x.size(x.dim() - 2);
  result.many = rows >= int64_t(1) << 31;
  if (!result.many) result.by_queries = Divider<uint32_t>(result.queries);
  return result;
}

// A mask stretched to the rows of x.
struct MaskView {
  RowsView view;  // the given one, or a copy; it must outlive the launch
  int64_t step = 0;

  template <class T>
  bool like(const RowsView& other) const {
    return step == 1 && dtype_of(view.tensor) == dtype_of(other.tensor) &&
           aligned_alike<T>(view, other);
  }
  Mask read() const {
    Mask mask;
    mask.values = {view.tensor.const_data_ptr(), dtype_of(view.tensor) == DType::f32};
    mask.step = step;
    mask.rows = Walk<uint32_t, 1>(view.leading);
    return mask;
  }
};

inline MaskView stretch(const char* name, const Tensor& given, const Tensor& x) {
  const bool as_it_is = dtype_of(given) == DType::f32 || dtype_of(given) == dtype_of(x);
  const Tensor mask = as_it_is ? given : *as_param(given, x).tensor;
  const auto shape = sizes(x), own = sizes(mask), own_strides = strides(mask);
  OPFORGE_CHECK(same_device(x, mask) && own.size() <= shape.size(), name,
                ": mask must broadcast to x");
  int64_t strides[kMaxDims] = {};
  const size_t missing = shape.size() - own.size(), last = shape.size() - 1;
  for (size_t d = 0; d < own.size(); ++d) {
    OPFORGE_CHECK(own[d] == 1 || own[d] == shape[d + missing], name, ": mask must broadcast to x");
    if (own[d] != 1) strides[d + missing] = own_strides[d];
  }
  const MaskView result{{mask, flatten_in_order(shape.first(last), {strides, last})},
                        shape[last] == 1 ? 1 : strides[last]};
  const Layout<1>& leading = result.view.leading;
  const bool simple = leading.fits && (leading.rank <= 1 || leading.count() < (int64_t(1) << 31));
  return simple ? result : stretch(name, expand_copy(mask, shape), x);
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

template <bool Log>
Tensor softmax_forward(const char* name, const Tensor& x, const std::optional<Tensor>& mask,
                       double scale, bool causal) {
  OPFORGE_CHECK(x.dim() >= 1, name, ": x must have a dim");
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(sizes(x), x);
  const int64_t cols = x.size(x.dim() - 1), rows = cols == 0 ? 0 : x.numel() / cols;
  const Causal visible = make_causal(name, x, causal, rows);
  std::optional<MaskView> added;
  if (mask) added = stretch(name, *mask, x);
  if (rows == 0) return y;
  const RowsView from = as_rows(x), to = as_rows(y);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    with_row_vectors<T>({&to, &from}, [&]<int N>(Width<N>, bool ragged) {
      using Rare = SoftmaxForward<T, Log, Masked::any>;
      const bool rare = N == 1 || !can_hold<N, Rare>(rows, cols, ragged);
      const auto run = [&](auto visitor) {
        visitor.x = from.read<T>();
        visitor.y = mutable_data<T>(y);
        visitor.scale = compute_t<T>(scale);
        visitor.cols = cols;
        map_rows<N>(rows, cols, ragged, visitor, current_stream(x));
      };
      if constexpr (N > 1 && sizeof(T) < 8) {
        SoftmaxPlain<T, Log> visitor;
        visitor.exponent = float(scale * 1.4426950408889634);
        if (!rare && !mask && !causal && is_plain(visitor.exponent)) return run(visitor);
      }
      with_masked<T>(!rare && (!added || added->like<T>(to)),
                     [&]<Masked M>(std::integral_constant<Masked, M>) {
                       SoftmaxForward<T, Log, M> visitor;
                       if (added) visitor.mask = added->read();
                       visitor.causal = visible;
                       run(visitor);
                     });
    });
  });
  return y;
}

template <bool Log>
Tensor softmax_backward(const char* name, const Tensor& grad_y, const Tensor& y, double scale,
                        bool causal) {
  OPFORGE_CHECK(y.dim() >= 1 && same_device(grad_y, y) && same_shape(grad_y, y) &&
                    dtype_code(grad_y) == dtype_code(y),
                name, "_backward: grad_y differs from y in device, shape or dtype");
  const DeviceGuard guard(y.get_device_index());
  const Tensor grad_x = empty(sizes(y), y);
  const int64_t cols = y.size(y.dim() - 1), rows = cols == 0 ? 0 : y.numel() / cols;
  const Causal visible = make_causal(name, y, causal, rows);
  if (rows == 0) return grad_x;
  const RowsView grads = as_rows(grad_y), values = as_rows(y), to = as_rows(grad_x);
  dispatch(dtype_of(y), [&]<class T>(Type<T>) {
    with_row_vectors<T>({&to, &grads, &values}, [&]<int N>(Width<N>, bool ragged) {
      const auto run = [&]<bool Hides>(std::bool_constant<Hides>) {
        SoftmaxBackward<T, Log, Hides> visitor;
        visitor.grad_y = grads.read<T>();
        visitor.y = values.read<T>();
        visitor.grad_x = mutable_data<T>(grad_x);
        visitor.causal = visible;
        visitor.scale = compute_t<T>(scale);
        visitor.cols = cols;
        map_rows<N>(rows, cols, ragged, visitor, current_stream(y));
      };
      if constexpr (sizeof(T) < 8 && N > 1) {
        const bool held = can_hold<N, SoftmaxBackward<T, Log, true>>(rows, cols, ragged);
        if (held && !causal) return run(std::false_type{});
      }
      run(std::true_type{});
    });
  });
  return grad_x;
}

}  // namespace opforge
