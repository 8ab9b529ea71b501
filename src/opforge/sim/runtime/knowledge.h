// SPDX-License-Identifier: Apache-2.0
// How far somebody knows what others did: of each block, everything up to a barrier and what lanes
// of some warps did since; and which bulk copies are over.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>

#include "state.h"

namespace opforge::sim::shadow {

using Clocks = std::array<uint32_t, kWarp>;  // of the lanes of a warp

class Knowledge {
 public:
  bool empty() const { return blocks_.empty() && reads_.empty() && copies_.empty(); }
  void clear() {
    blocks_.clear();
    reads_.clear();
    copies_.clear();
  }

  // All that `block` did before the barrier that began `epoch`.
  void learn(uint32_t block, uint32_t epoch) { merge(blocks_[block], {epoch, {}}); }
  // And what the lanes of a warp did in that epoch, up to these clocks.
  void learn(uint32_t block, uint32_t epoch, int warp, const Clocks& clocks) {
    merge(blocks_[block], {epoch, {{warp, clocks}}});
  }
  void learn(const Knowledge& other) {
    for (const auto& [block, what] : other.blocks_) merge(blocks_[block], what);
    for (const auto& [block, what] : other.reads_) merge(reads_[block], what);
    for (const auto& [engine, phases] : other.copies_) learn_copies(engine, phases);
  }
  // Only that what was read there has been read.
  void learn_reads(const Knowledge& other) {
    for (const auto& [block, what] : other.blocks_) merge(reads_[block], what);
    for (const auto& [block, what] : other.reads_) merge(reads_[block], what);
    for (const auto& [engine, phases] : other.copies_) learn_copies(engine, phases);
  }
  // The copies that an engine did before a phase.
  void learn_copies(uint32_t engine, uint32_t phase) {
    uint32_t& known = copies_[engine];
    known = std::max(known, phase);
  }

  // Of reads, or of whatever was done.
  bool covers_epoch(uint32_t block, uint32_t epoch, bool reads) const {
    return any(block, reads, [&](const Block& known) { return known.epoch > epoch; });
  }
  // Something of every thread, as far as that can be told: the epoch has been reached.
  bool reaches_epoch(uint32_t block, uint32_t epoch, bool reads) const {
    return any(block, reads, [&](const Block& known) { return known.epoch >= epoch; });
  }
  bool covers_lanes(uint32_t block, uint32_t epoch, int warp, uint32_t lanes, uint32_t clock,
                    bool reads) const {
    return any(block, reads, [&](const Block& known) {
      if (known.epoch != epoch) return false;
      const auto clocks = known.warps.find(warp);
      if (clocks == known.warps.end()) return false;
      for (int lane = 0; lane < kWarp; ++lane) {
        if ((lanes >> lane & 1) && clocks->second[size_t(lane)] < clock) return false;
      }
      return true;
    });
  }

  bool covers_copies(uint32_t engine, uint32_t phase) const {
    const auto found = copies_.find(engine);
    return found != copies_.end() && found->second > phase;
  }

 private:
  struct Block {
    uint32_t epoch = 0;
    std::map<int, Clocks> warps;  // within that epoch
  };
  using Blocks = std::map<uint32_t, Block>;

  template <class Test>
  bool any(uint32_t block, bool reads, const Test& test) const {
    const auto holds = [&](const Blocks& known) {
      const auto found = known.find(block);
      return found != known.end() && test(found->second);
    };
    return holds(blocks_) || (reads && holds(reads_));
  }

  static void merge(Block& into, const Block& from) {
    if (from.epoch > into.epoch) {
      into = from;
    } else if (from.epoch == into.epoch) {
      for (const auto& [warp, clocks] : from.warps) {
        Clocks& mine = into.warps[warp];
        for (int i = 0; i < kWarp; ++i)
          mine[size_t(i)] = std::max(mine[size_t(i)], clocks[size_t(i)]);
      }
    }
  }

  Blocks blocks_, reads_;  // reads: of these, no more is known than that they are over
  std::map<uint32_t, uint32_t> copies_;
};

}  // namespace opforge::sim::shadow
