// SPDX-License-Identifier: Apache-2.0
#include "bounds.h"

#include <algorithm>
#include <string>

#include "placement.h"
#include "report.h"

namespace opforge::sim {

namespace {

constexpr int64_t kMost = 1024;
// A thread may have up to 255 registers where nothing is said, which are allotted by 8, and a block
// has 65,536.
constexpr int64_t kUnsaid = 256;

// What __launch_bounds__ says, in whole warps; 0 if it is not there. The macro puts one byte that
// does nothing in front of the kernel for each thread. The code before may end in some more of
// them, fewer than a warp.
int64_t bound_of(const void* function) {
  constexpr unsigned char kNothing = 0x90;
  const auto* const kernel = static_cast<const unsigned char*>(function);
  const auto* const low = reinterpret_cast<const unsigned char*>(code_around(function).low);
  const int64_t most = std::min<int64_t>(kMost + kWarp - 1, kernel - low);
  int64_t count = 0;
  while (count < most && kernel[-1 - count] == kNothing) ++count;
  return count / kWarp * kWarp;
}

}  // namespace

int most_threads(const Kernel& kernel) {
  const int64_t bound = kernel.tells_bounds ? bound_of(kernel.function) : 0;
  return int(std::min(bound == 0 ? kMost : bound, settings.threads_per_block));
}

void check_bounds(const cudaLaunchConfig_t& config, const Kernel& kernel, const void* pc) {
  const dim3 b = config.blockDim;
  const int64_t threads = int64_t(b.x) * b.y * b.z;
  if (!kernel.tells_bounds || threads <= kWarp) return;
  const int64_t bound = bound_of(kernel.function);
  if (threads <= (bound == 0 ? kUnsaid : bound)) return;
  const std::string who = "kernel " + kernel_name(kernel.function) + " is launched with " +
                          std::to_string(threads) + " threads to a block, ";
  const std::string say = "__launch_bounds__(" + std::to_string(bound == 0 ? threads : bound) + ")";
  report("launch-bounds",
         bound == 0 ? who +
                          "and nothing tells the compiler, which may give them more registers "
                          "than a block has; say " +
                          say
                    : who + "but says " + say + ": a GPU refuses it",
         outside_launch(pc));
  throw_reports();
}

}  // namespace opforge::sim
