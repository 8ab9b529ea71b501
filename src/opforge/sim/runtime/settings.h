// SPDX-License-Identifier: Apache-2.0
// What Python sets: the device to pretend to be, and how to run.
#pragma once

#include <cstdint>

namespace opforge::sim {

struct Settings {
  // The device. Defaults are an H200.
  int64_t multiprocessors = 132;
  int64_t threads_per_block = 1024;
  int64_t shared_per_block = 49152;
  int64_t most_shared_per_block = 232448;  // for a kernel that was allowed to have it
  int64_t blocks_per_cluster = 8;
  int64_t capability_major = 9, capability_minor = 0;
  // The run.
  int64_t seed = -1;     // shuffles threads and blocks; -1 runs them in order
  int64_t timeout = 60;  // seconds a block may take
  int64_t race = 0;      // look for races and reads of memory nothing wrote
  int64_t traffic = 0;   // count bytes, sectors and bank conflicts
  // Tensors are on another device than the current one, and its current stream is not the default.
  int64_t placement = 0;
};
extern Settings settings;

}  // namespace opforge::sim
