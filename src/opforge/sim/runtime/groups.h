// SPDX-License-Identifier: Apache-2.0
// Reads of one place by several warps of a block, or by copies, that nothing orders among each
// other: who they were, in full. Kept only in kernels with barriers of async.h, whose arrivals
// order some of them; __syncthreads orders all.
#pragma once

#include <algorithm>
#include <compare>
#include <map>
#include <vector>

#include "pages.h"
#include "state.h"

namespace opforge::sim::shadow {

struct Part {
  static constexpr uint32_t kCopy = 1024;  // in place of a warp
  uint32_t warp, lanes, stamp;             // of a copy: engine and phase
  auto operator<=>(const Part&) const = default;
};
using Group = std::vector<Part>;

// Cells with the same readers share a group.
class Groups {
 public:
  void clear() {
    groups_.clear();
    numbers_.clear();
  }

  // For accesses of the cluster that runs.
  const Group* find(const Access& a) const {
    const bool one = a.many_warps && !a.many_blocks && (a.second & kMark) != 0;
    return one ? groups_[a.second & ~kMark] : nullptr;
  }

  Group parts_of(const Access& a) const {
    if (const Group* group = find(a)) return *group;
    return {{a.copy ? Part::kCopy : uint32_t(a.thread) / kWarp, a.lanes, a.stamp}};
  }

  // Makes `a` stand for the parts and one more.
  void put(Access& a, Group parts, const Part& more) {
    // A thread's last access stands for those before, and so does an engine's.
    for (Part& p : parts) {
      if (p.warp != more.warp) continue;
      if (p.warp != Part::kCopy) p.lanes &= ~more.lanes;
      if (p.warp == Part::kCopy && p.lanes == more.lanes && p.stamp <= more.stamp) p.lanes = 0;
    }
    std::erase_if(parts, [](const Part& p) { return p.lanes == 0; });
    const auto same = std::find_if(parts.begin(), parts.end(), [&](const Part& p) {
      return p.warp == more.warp && p.stamp == more.stamp && p.warp != Part::kCopy;
    });
    if (same != parts.end()) {
      same->lanes |= more.lanes;
    } else {
      parts.push_back(more);
    }
    const auto [found, added] = numbers_.try_emplace(std::move(parts), uint32_t(groups_.size()));
    if (added) groups_.push_back(&found->first);
    a.copy = 0;
    a.many_warps = 1;
    a.second = kMark | found->second;
  }

 private:
  static constexpr uint32_t kMark = 1u << 31;
  std::map<Group, uint32_t> numbers_;
  std::vector<const Group*> groups_;
};

}  // namespace opforge::sim::shadow
