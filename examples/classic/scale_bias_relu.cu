// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <tuple>

constexpr int kThreads = 256;

template <class T>
__global__ void forward(const T* x, const T* bias, T* y, int64_t n, int64_t cols, double scale) {
  using A = at::opmath_type<T>;
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const A v = A(x[i]) * A(scale) + A(bias[i % cols]);
    y[i] = T(v < A(0) ? A(0) : v);
  }
}

template <class T>
__global__ void backward(const T* grad, const T* y, T* passed, int64_t n) {
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step)
    passed[i] = y[i] <= T(0) ? T(0) : grad[i];
}

static int blocks(int64_t n) {
  return int(std::min<int64_t>((n + kThreads - 1) / kThreads, 65535));
}

at::Tensor forward_cuda(const at::Tensor& x, const at::Tensor& bias, double scale) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor y = at::empty_like(x);
  if (x.numel() == 0) return y;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "forward_cuda", [&] {
    forward<<<blocks(x.numel()), kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
        x.const_data_ptr<scalar_t>(), bias.const_data_ptr<scalar_t>(),
        y.mutable_data_ptr<scalar_t>(), x.numel(), bias.numel(), scale);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

std::tuple<at::Tensor, at::Tensor> backward_cuda(const at::Tensor& grad, const at::Tensor& y,
                                                 double scale) {
  const c10::cuda::CUDAGuard guard(y.device());
  const at::Tensor passed = at::empty_like(y);
  if (y.numel() > 0) {
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, y.scalar_type(), "backward_cuda", [&] {
          backward<<<blocks(y.numel()), kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
              grad.const_data_ptr<scalar_t>(), y.const_data_ptr<scalar_t>(),
              passed.mutable_data_ptr<scalar_t>(), y.numel());
        });
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
  return {passed * scale, passed.reshape({-1, y.size(-1)}).sum(0)};
}
