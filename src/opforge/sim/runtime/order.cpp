// SPDX-License-Identifier: Apache-2.0
#include "order.h"

#include <algorithm>
#include <bit>
#include <set>
#include <unordered_map>

#include "groups.h"
#include "shadow.h"

namespace opforge::sim {

namespace shadow {

namespace {

struct Moment {
  uint32_t block, epoch, generation;
};

// An atomic variable, as a way to tell.
struct Signal {
  Knowledge told;
  std::set<uint32_t> blocks;  // that have changed it
};

struct ThreadOrder {
  Knowledge known;
  Knowledge read;           // from atomics; known once a fence or barrier follows
  Knowledge fenced;         // what it may tell other blocks, as of its last device fence
  Knowledge fenced_within;  // and its own block, as of its last fence of any kind
  std::set<Signal*> signals;
  uint32_t fenced_epoch = 0, fenced_clock = 0;  // what it wrote before, copies see
  uint32_t unfenced = 0;  // one more than the epoch of its last write that no fence followed
  bool used = false;
};

// One launch: what the ids of its moments stand for.
struct Moments {
  uint32_t base = 1;
  std::vector<Moment> list;
  dim3 grid, block;

  const Moment& operator[](uint32_t id) const { return list[id - base]; }
};

Moments now_, before_;  // this launch and the one before
bool overlaps = false;
std::vector<ThreadOrder> threads;
std::vector<uint32_t> begun;  // blocks of this launch
std::unordered_map<uintptr_t, Signal> global_signals, shared_signals;

struct BlockOrder {
  Knowledge known;
  Knowledge fenced;
  std::set<Signal*> signals;
  uint32_t fenced_epoch = 0;  // what was done before it, some thread has fenced since
};
std::vector<BlockOrder> blocks;  // of the cluster that runs
Groups groups;                   // of its accesses

// The moment of a thread in this epoch, shared by all of its block that are in its generation.
void enter(Fiber& f, uint32_t epoch) {
  const Moment wanted{f.block->number, epoch, f.generation};
  for (auto m = now_.list.rbegin(); m != now_.list.rend() && m - now_.list.rbegin() < 16; ++m) {
    if (m->block == wanted.block && m->epoch == epoch && m->generation == f.generation) {
      f.moment = now_.base + uint32_t(now_.list.rend() - m) - 1;
      return;
    }
  }
  now_.list.push_back(wanted);
  f.moment = now_.base + uint32_t(now_.list.size()) - 1;
}

uint32_t epoch(const Fiber& f) { return now_[f.moment].epoch; }

// Everything of the cluster that was done in an earlier generation than this is over for `f`.
uint32_t known_generation(const Fiber& f) {
  const uint32_t barriers = f.generation / 2;
  return barriers == 0 ? 0 : 2 * barriers - 1;
}

size_t index_of(const Fiber& f) { return size_t(&f - worker->fibers.data()); }

BlockOrder& order_of(const Block& b) { return blocks[size_t(b.rank)]; }

ThreadOrder& of(const Fiber& f) {
  ThreadOrder& t = threads[index_of(f)];
  t.used = true;
  return t;
}

// What the lanes of f's warp did up to now, as far as f has seen it; what f does next is later.
Clocks tick(const Fiber& f) {
  WarpState& warp = f.block->warps[size_t(f.warp())];
  Clocks clocks = warp.seen[size_t(f.lane())];
  clocks[size_t(f.lane())] = warp.clock++;
  return clocks;
}

void complete(ThreadOrder& t) {
  t.known.learn(t.read);
  t.read.clear();
}

template <class Test>
bool knows(const Fiber& f, const Test& test) {
  return test(threads[index_of(f)].known) || test(order_of(*f.block).known);
}

// Accesses of several blocks: each of them must have told. Clocks within an epoch are not kept.
bool all_told(const Fiber& f, uint32_t epoch) {
  return std::all_of(begun.begin(), begun.end(), [&](uint32_t block) {
    return block == f.block->number ||
           knows(f, [&](const Knowledge& k) { return k.reaches_epoch(block, epoch); });
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

// What lanes of a warp of f's block did in this epoch, or a copy.
bool ordered(const Fiber& f, const Part& p) {
  if (p.warp == Part::kCopy) return is_over(f, p.lanes, p.stamp);
  if (p.warp == uint32_t(f.warp()) && ordered_in_warp(f, p.lanes, p.stamp)) return true;
  return knows(f, [&](const Knowledge& k) {
    return k.covers_lanes(f.block->number, epoch(f), int(p.warp), p.lanes, p.stamp);
  });
}

bool is_own(const Fiber& f, const Access& a) { return block_of(a) == f.block->number; }

}  // namespace

bool same_cluster(uint32_t block, uint32_t other) {
  const auto size = uint32_t(blocks.size());
  return block / size == other / size;
}

bool ordered(const Fiber& f, const Access& a) {
  if (a.moment == 0) return true;
  if (!of_this_launch(a)) return !(overlaps && !f.awaited && a.moment >= before_.base);
  if (a.before && !f.awaited) return false;
  if (a.copy) return is_over(f, a.lanes, a.stamp);
  const Moment& m = now_[a.moment];
  if (a.many_blocks) {
    if (!a.one_cluster) return all_told(f, a.stamp);
    return same_cluster(m.block, f.block->number) && a.stamp < known_generation(f);
  }
  if (m.generation < known_generation(f) && same_cluster(m.block, f.block->number)) return true;
  const int warp = int(a.thread) / kWarp;
  if (m.block == f.block->number) {
    if (m.epoch < epoch(f)) return true;
    if (const Group* group = groups.find(a)) {
      return std::all_of(group->begin(), group->end(),
                         [&](const Part& p) { return ordered(f, p); });
    }
    if (a.many_warps) return false;
    if (warp == f.warp() && ordered_in_warp(f, a.lanes, a.stamp)) return true;
  }
  return knows(f, [&](const Knowledge& k) {
    return k.covers_epoch(m.block, m.epoch) ||
           (!a.many_warps && k.covers_lanes(m.block, m.epoch, warp, a.lanes, a.stamp));
  });
}

void join(const Fiber& f, Access& others, const Access& mine) {
  if (ordered(f, others)) {
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
    std::erase_if(parts, [&](const Part& p) { return ordered(f, p); });
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

void note_global_write(const Fiber& f) { of(f).unfenced = epoch(f) + 1; }

void tell(const Worker& w, uintptr_t address, bool shared) {
  const Fiber& f = *w.running;
  ThreadOrder& t = of(f);
  Signal& signal = (shared ? shared_signals : global_signals)[address];
  const bool within = shared && w.blocks.size() == 1;  // the block
  t.read.learn(signal.told);
  signal.told.learn(within ? t.fenced_within : t.fenced);
  if (!within) signal.told.learn(order_of(*f.block).fenced);
  signal.blocks.insert(f.block->number);
  t.signals.insert(&signal);
}

bool has_told(const Fiber& f, uint32_t block) {
  const auto told = [block](const Signal* s) { return s->blocks.contains(block); };
  const auto &own = threads[index_of(f)].signals, &others = order_of(*f.block).signals;
  return std::any_of(own.begin(), own.end(), told) ||
         std::any_of(others.begin(), others.end(), told);
}

bool of_this_launch(const Access& a) { return a.moment >= now_.base; }

uint32_t block_of(const Access& a) { return now_[a.moment].block; }

std::string name_of(const Access& a, const Fiber& f) {
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
  const Group* group = is_own(f, a) ? groups.find(a) : nullptr;
  if (group != nullptr) {
    for (const Part& p : *group) {
      if (p.warp == Part::kCopy || ordered(f, p)) continue;
      const uint32_t others = p.warp == uint32_t(f.warp()) ? p.lanes & ~(1u << f.lane()) : p.lanes;
      thread = int(p.warp) * kWarp + std::countr_zero(others);
    }
  } else if (!a.copy && is_own(f, a) && thread == f.number) {
    const uint32_t others = a.lanes & ~(1u << f.lane());
    thread = a.many_warps ? int(a.second) : f.warp() * kWarp + std::countr_zero(others);
  }
  return name_of_thread(l, block_of(a), thread);
}

void begin_launch(const Launch& l) {
  if (!settings.race) return;
  before_ = std::move(now_);
  now_ = {before_.base + uint32_t(before_.list.size()), {}, l.grid, l.block};
  overlaps = l.overlaps;
  threads.assign(size_t(l.threads) * l.cluster, {});
  blocks.assign(l.cluster, {});
  begun.clear();
  global_signals.clear();
}

void begin_cluster(Worker& w) {
  if (!settings.race) return;
  shared_signals.clear();
  groups.clear();
  for (ThreadOrder& t : threads) {
    if (t.used) t = {};
  }
  for (Block& b : w.blocks) {
    begun.push_back(b.number);
    order_of(b) = {};
    b.visits.assign(w.blocks.size(), {});
    for (Fiber& f : b.fibers) enter(f, 0);
    for (WarpState& warp : b.warps) {
      warp.clock = 1;
      if (warp.synced) warp.seen = {};
      warp.synced = false;
    }
  }
}

void barrier(Block& b) {
  if (!settings.race) return;
  BlockOrder& block = order_of(b);
  bool awaited = false, all_fenced = true;
  uint32_t next = 0;
  for (const Fiber& f : b.fibers) {
    awaited = awaited || f.awaited;
    next = std::max(next, epoch(f) + 1);
    ThreadOrder& t = threads[index_of(f)];
    if (!t.used) continue;
    complete(t);
    block.known.learn(t.known);
    block.signals.insert(t.signals.begin(), t.signals.end());
    all_fenced = all_fenced && t.unfenced <= block.fenced_epoch;
    t.known.clear();
    t.signals.clear();
  }
  for (Fiber& f : b.fibers) {
    f.awaited = awaited;
    enter(f, next);
  }
  // If every thread has fenced what it wrote, any of them may tell of all that.
  if (all_fenced) block.fenced.learn(b.number, next);
}

void release(const Fiber& f, Knowledge& telling) {
  if (!settings.race) return;
  telling.learn(f.block->number, epoch(f), f.warp(), tick(f));
  telling.learn(of(f).known);
}

void acquire(const Fiber& f, const Knowledge& told) {
  if (settings.race) of(f).known.learn(told);
}

void fence_for_copies(const Fiber& f) {
  if (!settings.race) return;
  ThreadOrder& t = of(f);
  t.fenced_epoch = epoch(f);
  t.fenced_clock = tick(f)[size_t(f.lane())];
}

bool fenced_for_copies(const Access& write) {
  const Moment& m = now_[write.moment];
  if (!same_cluster(m.block, worker->blocks.front().number)) return true;
  const Block& b = worker->blocks[m.block % worker->blocks.size()];
  const ThreadOrder& t = threads[index_of(b.fibers[write.thread])];
  if (m.epoch != t.fenced_epoch) return m.epoch < t.fenced_epoch;
  return write.stamp <= t.fenced_clock;
}

void new_generation(Fiber& f) {
  if (settings.race) enter(f, epoch(f));
}

// What one block has learnt from atomics, all know now. (Its own accesses are ordered by their
// generation.)
void cluster_barrier(Worker& w) {
  if (!settings.race) return;
  Knowledge all;
  bool awaited = false;
  for (const Fiber& f : w.fibers) {
    awaited = awaited || f.awaited;
    if (ThreadOrder& t = threads[index_of(f)]; t.used) {
      complete(t);
      all.learn(t.known);
    }
  }
  for (const BlockOrder& b : blocks) all.learn(b.known);
  for (BlockOrder& b : blocks) b.known = all;
  for (Fiber& f : w.fibers) f.awaited = awaited;
}

void warp_sync(Block& b, int number, uint32_t lanes) {
  if (!settings.race) return;
  WarpState& warp = b.warps[size_t(number)];
  warp.synced = true;
  Clocks together{};
  Knowledge known;
  bool awaited = false;
  const auto each = [&](const auto& visit) {
    for (int lane = 0; lane < kWarp; ++lane) {
      if (lanes >> lane & 1) visit(lane, b.fibers[size_t(number * kWarp + lane)]);
    }
  };
  each([&](int lane, const Fiber& f) {
    for (int other = 0; other < kWarp; ++other) {
      together[size_t(other)] =
          std::max(together[size_t(other)], warp.seen[size_t(lane)][size_t(other)]);
    }
    together[size_t(lane)] = warp.clock;
    awaited = awaited || f.awaited;
    if (ThreadOrder& t = threads[index_of(f)]; t.used) {
      complete(t);
      known.learn(t.known);
    }
  });
  each([&](int lane, Fiber& f) {
    warp.seen[size_t(lane)] = together;
    f.awaited = awaited;
    if (!known.empty()) of(f).known = known;
  });
  ++warp.clock;
}

}  // namespace shadow

void fence(Scope scope) {
  if (!settings.race || !in_kernel) return;
  using namespace shadow;
  const Fiber& f = *worker->running;
  BlockOrder& block = order_of(*f.block);
  ThreadOrder& t = of(f);
  complete(t);
  const Clocks clocks = tick(f);
  const auto refresh = [&](Knowledge& fenced) {
    fenced.learn(f.block->number, epoch(f), f.warp(), clocks);
    fenced.learn(t.known);
    fenced.learn(block.known);
  };
  refresh(t.fenced_within);
  if (scope != Scope::device) return;
  refresh(t.fenced);
  t.unfenced = 0;
  block.fenced_epoch = std::max(block.fenced_epoch, epoch(f));
}

}  // namespace opforge::sim
