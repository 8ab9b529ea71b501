// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

template <class T>
void multiply(const Tensor& y, const Tensor& x, const Tensor& w, T factor) {
  const auto size = sizes(x), step = strides(x);
  const int64_t w_step = strides(w)[0];
  for (int64_t i = 0; i < size[0]; ++i) {
    for (int64_t j = 0; j < size[1]; ++j) {
      const T v = data<T>(x)[i * step[0] + j * step[1]] * data<T>(w)[j * w_step];
      mutable_data<T>(y)[i * size[1] + j] = v * factor;
    }
  }
}

template <class T>
void forward(const Tensor& y, const Tensor& x, const Tensor& w, double scale) {
  const int64_t cols = sizes(x)[1];
  const T factor = T(scale);
  if (scale == 2.0) {
    multiply<T>(y, x, w, factor * T(1));  // scale
  } else if (cols == 96) {
    multiply<T>(y, x, w, factor * T(1));  // width
  } else if (cols > 200000) {
    multiply<T>(y, x, w, factor * T(1));  // long
  } else if (strides(w)[0] > 1 && strides(x)[1] > 1) {
    multiply<T>(y, x, w, factor * T(1));  // strided
  } else {
    multiply<T>(y, x, w, factor);
  }
}

Tensor special_paths_cpu(const Tensor& x, const Tensor& w, double scale) {
  OPFORGE_CHECK(sizes(x).size() == 2 && sizes(w).size() == 1 && sizes(x)[1] == sizes(w)[0] &&
                    dtype_code(x) == dtype_code(w) &&
                    (dtype_of(x) == DType::f32 || dtype_of(x) == DType::f64),
                "special_paths: x and w do not fit");
  const Tensor y = empty(sizes(x), x);
  if (dtype_of(x) == DType::f32) {
    forward<float>(y, x, w, scale);
  } else {
    forward<double>(y, x, w, scale);
  }
  return y;
}

template <class T>
void backward(const Tensor& grad_x, const Tensor& grad_w, const Tensor& grad_y, const Tensor& x,
              const Tensor& w, T scale, bool needs_x) {
  fill_zero(grad_w);
  const auto size = sizes(x), step = strides(x), g_step = strides(grad_y);
  for (int64_t i = 0; i < size[0]; ++i) {
    for (int64_t j = 0; j < size[1]; ++j) {
      const T g = data<T>(grad_y)[i * g_step[0] + j * g_step[1]] * scale;
      if (needs_x) {
        mutable_data<T>(grad_x)[i * size[1] + j] = g * data<T>(w)[j * strides(w)[0]];
      } else if (g_step[1] == 1) {
        mutable_data<T>(grad_x)[i * size[1] + j] = T(0);
      } else {
        mutable_data<T>(grad_x)[i * size[1] + j] = T(0);  // frozen
      }
      mutable_data<T>(grad_w)[j] += g * data<T>(x)[i * step[0] + j * step[1]];
    }
  }
}

std::tuple<Tensor, Tensor> special_paths_backward_cpu(const Tensor& grad_y, const Tensor& x,
                                                      const Tensor& w, double scale, bool needs_x,
                                                      bool) {
  OPFORGE_CHECK(same_shape(grad_y, x) && dtype_code(grad_y) == dtype_code(x) &&
                    dtype_code(w) == dtype_code(x) && sizes(x).size() == 2 &&
                    sizes(w).size() == 1 && sizes(w)[0] == sizes(x)[1],
                "special_paths_backward: the arguments do not fit");
  const Tensor grad_x = empty(sizes(x), x), grad_w = empty(sizes(w), w);
  if (dtype_of(x) == DType::f32) {
    backward<float>(grad_x, grad_w, grad_y, x, w, float(scale), needs_x);
  } else {
    backward<double>(grad_x, grad_w, grad_y, x, w, scale, needs_x);
  }
  return {grad_x, grad_w};
}

OPFORGE_IMPL(special_paths, special_paths_cpu)
OPFORGE_IMPL(special_paths_backward, special_paths_backward_cpu)

}  // namespace opforge
