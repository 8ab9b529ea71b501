// SPDX-License-Identifier: Apache-2.0
#include "order.h"

#include <algorithm>
#include <bit>

#include "order_state.h"

namespace opforge::sim::shadow {

namespace {

// Everything of the cluster that was done in an earlier generation than this is over for `f`.
uint32_t known_generation(const Fiber& f) {
  return f.cluster_ordered == 0 ? 0 : 2 * f.cluster_ordered - 1;
}

template <class Test>
bool knows(const Fiber& f, const Test& test) {
  return test(threads[index_of(f)].known) || test(order_of(*f.block).known);
}

// Accesses of several blocks: each of them must have told. Clocks within an epoch are not kept.
bool all_told(const Fiber& f, uint32_t epoch, bool reads) {
  return std::all_of(begun.begin(), begun.end(), [&](uint32_t block) {
    return block == f.block->number ||
           knows(f, [&](const Knowledge& k) { return k.reaches_epoch(block, epoch, reads); });
  });
}

bool ordered_in_warp(const Fiber& f, uint32_t lanes, uint32_t stamp) {
  const auto& seen = f.block->warps[size_t(f.warp())].seen[size_t(f.lane())];
  for (int lane = 0; lane < kWarp; ++lane) {
    if (lane != f.lane() && (lanes >> lane & 1) && seen[size_t(lane)] < stamp) return false;
  }
  return true;
}

bool is_over(const Fiber& f, uint32_t engine, uint32_t phase) {
  return knows(f, [&](const Knowledge& k) { return k.covers_copies(engine, phase); });
}

// What lanes of a warp did at a moment, or a copy.
bool ordered(const Fiber& f, const Moment& m, const Part& p, bool read) {
  if (p.warp == Part::kCopy) return is_over(f, p.lanes, p.stamp);
  const bool same_warp = m.block == f.block->number && p.warp == uint32_t(f.warp());
  if (same_warp && ordered_in_warp(f, p.lanes, p.stamp)) return true;
  return knows(f, [&](const Knowledge& k) {
    return k.covers_lanes(m.block, m.epoch, int(p.warp), p.lanes, p.stamp, read);
  });
}

// Whatever barriers the threads have passed.
bool copies_go_on(const Fiber& f, const Group& group) {
  return std::any_of(group.begin(), group.end(), [&](const Part& p) {
    return p.warp == Part::kCopy && !is_over(f, p.lanes, p.stamp);
  });
}

// Groups are those of the cluster that runs.
const Group* group_of(const Fiber& f, const Access& a) {
  return same_cluster(block_of(a), f.block->number) ? groups.find(a) : nullptr;
}

}  // namespace

bool same_cluster(uint32_t block, uint32_t other) {
  const auto size = uint32_t(blocks.size());
  return block / size == other / size;
}

bool ordered(const Fiber& f, const Access& a, bool read) {
  if (a.moment == 0) return true;
  if (!of_this_launch(a)) return !(overlaps && !f.awaited && a.moment >= before_.base);
  if (a.before && !f.awaited) return false;
  if (a.copy) return is_over(f, a.lanes, a.stamp);
  const Group* group = group_of(f, a);
  if (group != nullptr && copies_go_on(f, *group)) return false;
  const Moment& m = now_[a.moment];
  if (a.many_blocks) {
    if (!a.one_cluster) return all_told(f, a.stamp, read);
    return same_cluster(m.block, f.block->number) && a.stamp < known_generation(f);
  }
  if (m.generation < known_generation(f) && same_cluster(m.block, f.block->number)) return true;
  if (m.block == f.block->number && m.epoch < epoch(f)) return true;
  const Part one{uint32_t(a.thread) / kWarp, a.lanes, a.stamp};
  const auto over = [&](const Part& p) { return ordered(f, m, p, read); };
  const bool all_over = group != nullptr ? std::all_of(group->begin(), group->end(), over)
                                         : !a.many_warps && over(one);
  return all_over ||
         knows(f, [&](const Knowledge& k) { return k.covers_epoch(m.block, m.epoch, read); });
}

void join(const Fiber& f, Access& others, const Access& mine, bool read) {
  const bool same_engine = others.copy && mine.copy && others.lanes == mine.lanes;
  if ((same_engine && others.stamp <= mine.stamp) || ordered(f, others, read)) {
    others = mine;
  } else if (!of_this_launch(others)) {
    others = mine;
    others.before = 1;
  } else if (others.many_blocks || block_of(others) != f.block->number) {
    const Moment &first = now_[others.moment], &last = now_[f.moment];
    const bool one_cluster =
        same_cluster(first.block, last.block) && (others.one_cluster || !others.many_blocks);
    // Where other clusters come in, epochs count again.
    const bool kept = others.many_blocks && others.one_cluster == one_cluster;
    const uint32_t latest = kept ? others.stamp : one_cluster ? first.generation : first.epoch;
    others.stamp = std::max(latest, one_cluster ? last.generation : last.epoch);
    others.many_blocks = 1;
    others.one_cluster = one_cluster;
    others.second = f.moment;
  } else if (worker->async != nullptr && (!others.many_warps || groups.find(others) != nullptr)) {
    Group parts = groups.parts_of(others);
    const Moment& m = now_[others.moment];
    std::erase_if(parts, [&](const Part& p) { return ordered(f, m, p, read); });
    groups.put(others, parts, groups.parts_of(mine).front());
    others.moment = mine.moment;
  } else if (int(others.thread) / kWarp == f.warp() && !others.many_warps) {
    others.lanes |= mine.lanes;
    others.stamp = std::max(others.stamp, mine.stamp);
    others.moment = mine.moment;
  } else {
    others.many_warps = 1;
    others.second = uint32_t(f.number);
    others.moment = mine.moment;
  }
}

bool has_told(const Fiber& f, uint32_t block) {
  const auto told = [block](const Signal* s) { return s->blocks.contains(block); };
  const auto &own = threads[index_of(f)].signals, &others = order_of(*f.block).signals;
  return std::any_of(own.begin(), own.end(), told) ||
         std::any_of(others.begin(), others.end(), told);
}

bool of_this_launch(const Access& a) { return a.moment >= now_.base; }

uint32_t block_of(const Access& a) { return now_[a.moment].block; }

std::string name_of(const Access& a, const Fiber& f, bool read) {
  if (!of_this_launch(a)) {
    Launch l;
    l.grid = before_.grid;
    l.block = before_.block;
    return name_of_thread(l, before_[a.moment].block, int(a.thread)) + " of the kernel before";
  }
  if (a.before && !f.awaited) return "a thread of the kernel before";
  const Launch& l = *worker->launch;
  if (a.many_blocks && block_of(a) == f.block->number) {
    return "a thread of block " + name_of_block(l, now_[a.second].block);
  }
  int thread = int(a.thread);
  const bool own = block_of(a) == f.block->number;
  const Group* group = group_of(f, a);
  if (group != nullptr) {
    for (const Part& p : *group) {
      if (p.warp == Part::kCopy || ordered(f, now_[a.moment], p, read)) continue;
      const bool same_warp = own && p.warp == uint32_t(f.warp());
      const uint32_t others = same_warp ? p.lanes & ~(1u << f.lane()) : p.lanes;
      thread = int(p.warp) * kWarp + std::countr_zero(others);
    }
  } else if (!a.copy && own && thread == f.number) {
    const uint32_t others = a.lanes & ~(1u << f.lane());
    thread = a.many_warps ? int(a.second) : f.warp() * kWarp + std::countr_zero(others);
  }
  return name_of_thread(l, block_of(a), thread);
}

}  // namespace opforge::sim::shadow
