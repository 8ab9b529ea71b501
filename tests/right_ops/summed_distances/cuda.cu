// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor summed_distances_cuda(const Tensor& query, const Tensor& key) {
  OPFORGE_CHECK(query.dim() == 1 && key.dim() == 1 && dtype_code(query) == dtype_code(key) &&
                    same_device(query, key),
                "summed_distances: query and key are vectors of one dtype on one device");
  const DeviceGuard guard(query.get_device_index());
  const Tensor y = empty(sizes(query), query);
  if (y.numel() == 0) return y;
  dispatch(dtype_of(query), [&]<class T>(Type<T>) {
    launch(summed_distances<T>,
           {dim3(unsigned(ceil_div(y.numel(), kTile))), dim3(kTile), current_stream(query)},
           Matrix<const T>{data<T>(query), query.stride(0), 0},
           Matrix<const T>{data<T>(key), key.stride(0), 0}, mutable_data<T>(y), y.numel(),
           key.numel());
  });
  return y;
}

OPFORGE_IMPL(summed_distances, summed_distances_cuda)

}  // namespace opforge
