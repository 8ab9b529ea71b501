// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

static Quantised quantised(const Tensor& bytes, const Tensor& scale, int64_t stride) {
  return {mutable_data<uint8_t>(bytes), stride, mutable_data<float>(scale)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> quantize_fp8_cuda(const Tensor& x, bool e5m2,
                                                             bool per_row, bool rows,
                                                             bool columns) {
  OPFORGE_CHECK(x.dim() >= 1, "quantize_fp8: x must have at least one dimension");
  OPFORGE_CHECK(rows || columns, "quantize_fp8: neither rows nor columns are wanted");
  const DeviceGuard guard(x.get_device_index());
  MatrixView v = as_matrix(x);
  if (v.col_stride != 1 && v.row_stride != 1) v = as_matrix(contiguous(x));
  const auto results = [&](bool wanted, int64_t count, int64_t length) {
    const int64_t size[] = {count, (length + 15) / 16 * 16}, none[] = {0};
    const int64_t scales[] = {!wanted ? 0 : per_row ? count : 1};
    return std::pair(wanted ? empty(size, aoti_torch_dtype_uint8(), x)
                            : empty(none, aoti_torch_dtype_uint8(), x),
                     empty(scales, aoti_torch_dtype_float32(), x));
  };
  const auto [q, scale] = results(rows, v.rows, v.cols);
  const auto [q_t, scale_t] = results(columns, v.cols, v.rows);
  Quantised along, across;  // rows of what is contiguous, and its columns
  if (rows) along = quantised(q, scale, q.size(1));
  if (columns) across = quantised(q_t, scale_t, q_t.size(1));
  const bool swapped = v.col_stride != 1;
  if (swapped) {
    std::swap(v.rows, v.cols);
    std::swap(v.row_stride, v.col_stride);
    std::swap(along, across);
    std::swap(rows, columns);
  }
  const cudaStream_t stream = current_stream(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    const T* const from = v.data<T>();
    const bool aligned = reinterpret_cast<uintptr_t>(from) % 16 == 0 &&
                         (v.rows == 1 || v.row_stride * int64_t(sizeof(T)) % 16 == 0);
    const Source<T> source{from, v.rows, v.cols, v.row_stride, aligned && v.cols % 8 == 0};
    const auto run = [&]<class Q>(Type<Q>) {
      if (per_row && !columns) return launch_rows<T, Q>(source, along, stream);
      const int64_t words = per_row ? v.rows + v.cols : 1;
      const Tensor sizes = empty({&words, 1}, aoti_torch_dtype_int32(), x);
      fill_zero(sizes);
      uint32_t* const at = mutable_data<uint32_t>(sizes);
      Largest largest;
      if (!per_row) largest.all = at;
      if (per_row && rows) largest.rows = at;
      if (per_row && columns) largest.cols = at + v.rows;
      launch_tiles<T, Q>(source, largest, along, across, stream);
    };
    e5m2 ? run(Type<float8_e5m2>{}) : run(Type<float8_e4m3>{});
  });
  return {scale, q, scale_t, q_t};
}

OPFORGE_IMPL(quantize_fp8, quantize_fp8_cuda)

}  // namespace opforge
