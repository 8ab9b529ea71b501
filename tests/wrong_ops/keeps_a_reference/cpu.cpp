// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>
#include <opforge/host.h>

#include <map>

namespace opforge {

static std::map<const void*, Tensor> inputs;  // wrong: x by the address of its y

Tensor keeps_a_reference_cpu(const Tensor& x) {
  const Tensor y = empty(sizes(x), x);
  over_elements(
      y,
      [](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          elementwise(layout, mutable_data<T>(y), {data<T>(x)}, [](auto v) { return rectify(v); });
        });
      },
      x);
  inputs.insert_or_assign(y.const_data_ptr(), x);
  return y;
}

Tensor keeps_a_reference_backward_cpu(const Tensor& grad_y, const Tensor& y) {
  OPFORGE_CHECK(same_shape(grad_y, y) && dtype_code(grad_y) == dtype_code(y),
                "keeps_a_reference_backward: grad_y and y differ in shape or dtype");
  const auto found = inputs.find(y.const_data_ptr());
  const bool known = found != inputs.end() && same_shape(found->second, y) &&
                     dtype_code(found->second) == dtype_code(y);
  const Tensor grad_x = empty(sizes(y), y);
  over_elements(
      grad_x,
      [](const Layout<3>& layout, const Tensor& out, const Tensor& grad, const Tensor& kept) {
        dispatch(dtype_of(kept), [&]<class T>(Type<T>) {
          elementwise(layout, mutable_data<T>(out), {data<T>(grad), data<T>(kept)},
                      [](auto grad, auto kept) { return rectify_gradient(grad, kept); });
        });
      },
      grad_y, known ? found->second : y);
  return grad_x;
}

OPFORGE_IMPL(keeps_a_reference, keeps_a_reference_cpu)
OPFORGE_IMPL(keeps_a_reference_backward, keeps_a_reference_backward_cpu)

}  // namespace opforge
