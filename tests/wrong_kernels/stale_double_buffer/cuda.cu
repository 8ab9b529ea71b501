// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor distances_cuda(const Tensor& query, const Tensor& key) {
  OPFORGE_CHECK(query.is_contiguous() && dtype_of(query) == DType::f32 && query.numel() == kTile,
                "query must be 32 contiguous elements of float32");
  OPFORGE_CHECK(key.is_contiguous() && dtype_of(key) == DType::f32 && key.numel() % kTile == 0 &&
                    same_device(key, query),
                "key must be contiguous float32, a multiple of 32 elements");
  const DeviceGuard guard(query.get_device_index());
  const Tensor y = empty(sizes(query), query);
  launch(distances, {dim3(1), dim3(2 * kTile), current_stream(query)}, data<float>(query),
         data<float>(key), mutable_data<float>(y), int(key.numel() / kTile));
  return y;
}

OPFORGE_IMPL(distances, distances_cuda)

}  // namespace opforge
