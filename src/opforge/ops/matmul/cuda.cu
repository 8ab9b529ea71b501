// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "operands.h"
#include "rungs/coalesced.cuh"
#include "rungs/naive.cuh"
#include "rungs/registers.cuh"
#include "rungs/tiled.cuh"
#include "rungs/wmma.cuh"
#include "tiles.h"

namespace opforge {

namespace {

// The highest rung that takes such elements on this GPU.
Rung best_rung(DType dtype, bool tf32, int64_t m, int64_t n, int64_t k) {
  if (has_hopper_kernel(dtype, tf32, m, n, k)) return Rung::hopper;
  const bool wide = dtype == DType::f64 || (dtype == DType::f32 && !tf32);
  return wide || !has_mma() ? Rung::registers : Rung::mma;
}

template <class T>
MatmulProblem<T> problem_of(const Tensor& a, const Tensor& b, const Tensor& y) {
  const auto of_a = strides(a), of_b = strides(b);
  const size_t row = of_a.size() - 2, col = row + 1;
  const bool batched = row == 1;
  return {a.size(int64_t(row)),
          b.size(int64_t(col)),
          a.size(int64_t(col)),
          batched ? a.size(0) : 1,
          {data<T>(a), of_a[row], of_a[col]},
          {data<T>(b), of_b[row], of_b[col]},
          batched ? of_a[0] : 0,
          batched ? of_b[0] : 0,
          mutable_data<T>(y)};
}

// False if this library has no code of the rung for the GPU.
template <class T>
bool run_tensor_cores(Rung rung, const Tensor& a, const Tensor& b, const Tensor& y) {
  const bool hopper = rung == Rung::hopper;
  const Operand of_a = batched_operand<T>(a, false, hopper);
  const Operand of_b = batched_operand<T>(b, true, hopper);
  ProductCall call{dtype_of(a), of_a.outer, of_b.outer, of_a.inner};
  call.batches = a.dim() == 3 ? a.size(0) : 1;
  call.a = of_a.view, call.b[0] = of_b.view;
  call.out[0] = {y.mutable_data_ptr(), call.n, call.m * call.n};
  call.stream = current_stream(a);
  return hopper ? run_hopper_unit(call) : run_mma_unit(call);
}

template <class T>
void run_rung(Rung rung, const Tensor& a, const Tensor& b, const Tensor& y) {
  const MatmulProblem<T> p = problem_of<T>(a, b, y);
  const cudaStream_t stream = current_stream(a);
  switch (rung) {
    case Rung::naive:
      return run_naive(p, stream);
    case Rung::coalesced:
      return run_coalesced(p, stream);
    case Rung::tiled:
      return run_tiled(p, stream);
    case Rung::wmma:
      if constexpr (sizeof(T) == 2) return run_wmma(p, stream);
      break;
    default:
      break;
  }
  run_registers(p, stream);
}

}  // namespace

Tensor matmul_cuda(const Tensor& a, const Tensor& b, int64_t kernel, bool tf32) {
  const int64_t dims = a.dim();
  OPFORGE_CHECK((dims == 2 || dims == 3) && b.dim() == dims &&
                    a.size(dims - 1) == b.size(dims - 2) && (dims == 2 || a.size(0) == b.size(0)),
                "matmul: a must be (m, k) and b (k, n), or as many of them");
  OPFORGE_CHECK(same_device(a, b) && dtype_code(a) == dtype_code(b),
                "matmul: a and b differ in device or dtype");
  OPFORGE_CHECK(kernel >= 0 && kernel <= int64_t(Rung::hopper), "matmul: there is no kernel ",
                kernel);
  const int64_t m = a.size(dims - 2), n = b.size(dims - 1), k = a.size(dims - 1);
  const DType dtype = dtype_of(a);
  const bool is_short = dtype == DType::f16 || dtype == DType::bf16;
  Rung rung = kernel == 0 ? best_rung(dtype, tf32, m, n, k) : Rung(kernel);
  OPFORGE_CHECK(!tf32 || (dtype == DType::f32 && (kernel == 0 || rung >= Rung::mma)),
                "matmul: tf32 is for float32 and the kernels 'mma' and 'hopper'");
  OPFORGE_CHECK(rung < Rung::wmma || is_short || (tf32 && rung != Rung::wmma),
                "matmul: this kernel does not take this dtype");
  OPFORGE_CHECK(rung < Rung::wmma || has_mma(),
                "matmul: the kernels 'wmma' and 'mma' need a GPU of compute capability 8.0; pass "
                "kernel='registers' or kernel=None");
  OPFORGE_CHECK(rung != Rung::hopper || is_hopper(),
                "matmul: kernel='hopper' needs a GPU of compute capability 9.0; pass kernel='mma' "
                "or kernel=None");
  const DeviceGuard guard(a.get_device_index());
  std::vector<int64_t> shape(sizes(a).begin(), sizes(a).end());
  shape.back() = n;
  const Tensor y = empty(shape, a);
  if (y.numel() == 0) return y;
  if (k == 0) {
    fill_zero(y);
    return y;
  }
  dispatch(dtype, [&]<class T>(Type<T>) {
    if constexpr (sizeof(T) <= 4) {
      if (rung == Rung::hopper && !run_tensor_cores<T>(rung, a, b, y)) {
        OPFORGE_CHECK(kernel == 0,
                      "matmul: kernel='hopper' was not compiled for this GPU; add the target "
                      "\"9.0a\", or pass kernel='mma' or kernel=None");
        rung = Rung::mma;
      }
      if (rung == Rung::mma) run_tensor_cores<T>(rung, a, b, y);
    }
    if (rung < Rung::mma) run_rung<T>(rung, a, b, y);
  });
  return y;
}

OPFORGE_IMPL(matmul, matmul_cuda)

}  // namespace opforge
