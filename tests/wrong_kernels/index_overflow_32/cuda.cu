// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor piece_heads_cuda(const Tensor& x) {
  OPFORGE_CHECK(x.is_contiguous() && dtype_code(x) == aoti_torch_dtype_int8(),
                "x must be contiguous int8");
  const DeviceGuard guard(x.get_device_index());
  const int64_t pieces = x.numel() / kPiece;
  const Tensor y = empty({&pieces, 1}, x);
  launch(piece_heads, {dim3(unsigned(pieces)), dim3(1), current_stream(x)}, data<int8_t>(x),
         mutable_data<int8_t>(y));
  return y;
}

OPFORGE_IMPL(piece_heads, piece_heads_cuda)

}  // namespace opforge
