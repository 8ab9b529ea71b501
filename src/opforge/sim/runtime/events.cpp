// SPDX-License-Identifier: Apache-2.0
// What makes order: barriers of a warp, a block and a cluster, fences and atomics, arrivals.
#include <algorithm>

#include "order.h"
#include "order_state.h"
#include "shadow.h"

namespace opforge::sim {

namespace shadow {

Moments now_, before_;
bool overlaps = false;
std::vector<uint32_t> begun;
std::vector<ThreadOrder> threads;
std::vector<BlockOrder> blocks;
Groups groups;

namespace {

std::unordered_map<uintptr_t, Signal> global_signals, shared_signals;

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

}  // namespace

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

void release_reads(const Fiber& f, Knowledge& telling) {
  if (!settings.race) return;
  Knowledge mine;
  release(f, mine);
  mine.learn(order_of(*f.block).known);
  telling.learn_reads(mine);
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
