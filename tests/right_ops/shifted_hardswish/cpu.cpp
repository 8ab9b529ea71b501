// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

template <class A>
static A hardswish(A h) {
  const A up = h + 3;
  return h * (up < 0 ? A(0) : up > 6 ? A(6) : up) / 6;
}

template <class A>
static A slope(A h) {
  return h < -3 ? A(0) : h > 3 ? A(1) : h / 3 + A(0.5);
}

// Calls f(index into y, into a, into b, into c) for every element.
template <class F>
static void each(const Layout<4>& layout, const F& f) {
  for (int64_t i = 0, count = layout.count(); i < count; ++i) {
    int64_t at[4] = {}, rest = i;
    for (int d = 0; d < layout.rank; ++d) {
      const int64_t here = rest % layout.size[d];
      rest /= layout.size[d];
      for (int k = 0; k < 4; ++k) at[k] += here * layout.stride[k][d];
    }
    f(at[0], at[1], at[2], at[3]);
  }
}

static void check_alike(const Tensor& a, const Tensor& b) {
  OPFORGE_CHECK(same_shape(a, b) && dtype_code(a) == dtype_code(b),
                "shifted_hardswish: tensors differ in shape or dtype");
}

Tensor shifted_hardswish_cpu(const Tensor& x, const Tensor& bias) {
  check_alike(x, bias);
  const Tensor y = empty(sizes(x), x);
  const auto run = [](const Layout<4>& layout, const Tensor& y, const Tensor& x, const Tensor& bias,
                      const Tensor&) {
    dispatch(dtype_of(x), [&]<class T>(Type<T>) {
      each(layout, [&](int64_t to, int64_t i, int64_t j, int64_t) {
        mutable_data<T>(y)[to] =
            narrow<T>(hardswish(widen(data<T>(x)[i]) + widen(data<T>(bias)[j])));
      });
    });
  };
  over_elements(y, run, x, bias, x);
  return y;
}

std::tuple<Tensor, Tensor> shifted_hardswish_backward_cpu(const Tensor& grad_y, const Tensor& x,
                                                          const Tensor& bias) {
  check_alike(x, bias);
  check_alike(x, grad_y);
  const Tensor grad = empty(sizes(x), x);
  const auto run = [](const Layout<4>& layout, const Tensor& y, const Tensor& g, const Tensor& x,
                      const Tensor& bias) {
    dispatch(dtype_of(x), [&]<class T>(Type<T>) {
      each(layout, [&](int64_t to, int64_t i, int64_t j, int64_t k) {
        const compute_t<T> h = widen(data<T>(x)[j]) + widen(data<T>(bias)[k]);
        mutable_data<T>(y)[to] = narrow<T>(widen(data<T>(g)[i]) * slope(h));
      });
    });
  };
  over_elements(grad, run, grad_y, x, bias);
  return {grad, clone(grad)};
}

OPFORGE_IMPL(shifted_hardswish, shifted_hardswish_cpu)
OPFORGE_IMPL(shifted_hardswish_backward, shifted_hardswish_backward_cpu)

}  // namespace opforge
