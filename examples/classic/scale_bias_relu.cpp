// SPDX-License-Identifier: Apache-2.0
// relu(x * scale + bias), with the bias along the last dim: the binding, the gradient and the CPU
// kernels. The CUDA kernels are in scale_bias_relu.cu. (One may include <torch/extension.h> instead
// of these headers, which has more and takes longer to compile.)
#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/utils/pybind.h>

#include <tuple>

#ifdef WITH_CUDA
at::Tensor forward_cuda(const at::Tensor& x, const at::Tensor& bias, double scale);
std::tuple<at::Tensor, at::Tensor> backward_cuda(const at::Tensor& grad, const at::Tensor& y,
                                                 double scale);
#endif

static at::Tensor forward_cpu(const at::Tensor& x, const at::Tensor& bias, double scale) {
  const at::Tensor y = at::empty_like(x);
  const int64_t cols = bias.numel();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "forward_cpu", [&] {
    using acc_t = at::opmath_type<scalar_t>;
    const scalar_t *in = x.const_data_ptr<scalar_t>(), *b = bias.const_data_ptr<scalar_t>();
    scalar_t* out = y.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, x.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const acc_t v = acc_t(in[i]) * acc_t(scale) + acc_t(b[i % cols]);
        out[i] = scalar_t(v < acc_t(0) ? acc_t(0) : v);
      }
    });
  });
  return y;
}

static std::tuple<at::Tensor, at::Tensor> backward_cpu(const at::Tensor& grad, const at::Tensor& y,
                                                       double scale) {
  const at::Tensor passed = at::empty_like(y);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, y.scalar_type(), "backward_cpu", [&] {
    const scalar_t *g = grad.const_data_ptr<scalar_t>(), *kept = y.const_data_ptr<scalar_t>();
    scalar_t* out = passed.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, y.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = kept[i] <= scalar_t(0) ? scalar_t(0) : g[i];
    });
  });
  return {passed * scale, passed.reshape({-1, y.size(-1)}).sum(0)};
}

static void check(const at::Tensor& x, const at::Tensor& bias) {
  TORCH_CHECK(x.dim() > 0 && bias.dim() == 1 && bias.size(0) == x.size(-1),
              "bias must have one value per column of x");
  TORCH_CHECK(x.scalar_type() == bias.scalar_type(), "x and bias differ in dtype");
  TORCH_CHECK(x.device() == bias.device(), "x and bias are on different devices");
}

struct ScaleBiasReLU : torch::autograd::Function<ScaleBiasReLU> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& bias, double scale) {
    check(x, bias);
#ifdef WITH_CUDA
    const auto run = x.is_cuda() ? forward_cuda : forward_cpu;
#else
    TORCH_CHECK(x.is_cpu(), "built without CUDA");
    const auto run = forward_cpu;
#endif
    const at::Tensor y = run(x.contiguous(), bias.contiguous(), scale);
    ctx->save_for_backward({y});
    ctx->saved_data["scale"] = scale;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const at::Tensor y = ctx->get_saved_variables()[0];
    const double scale = ctx->saved_data["scale"].toDouble();
#ifdef WITH_CUDA
    const auto run = y.is_cuda() ? backward_cuda : backward_cpu;
#else
    const auto run = backward_cpu;
#endif
    const auto [grad_x, grad_bias] = run(grads[0].contiguous(), y, scale);
    return {grad_x, grad_bias, at::Tensor()};
  }
};

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def(
      "scale_bias_relu",
      [](const at::Tensor& x, const at::Tensor& bias, double scale) {
        return ScaleBiasReLU::apply(x, bias, scale);
      },
      pybind11::arg("x"), pybind11::arg("bias"), pybind11::arg("scale") = 1.0);
}
