// SPDX-License-Identifier: Apache-2.0
#include "order.h"

#include <algorithm>
#include <bit>
#include <set>
#include <unordered_map>

#include "knowledge.h"
#include "shadow.h"

namespace opforge::sim {

namespace shadow {

namespace {

struct Moment {
  uint32_t block, epoch;
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

// Of the block that runs.
Knowledge block_knows;
Knowledge block_fenced;
std::set<Signal*> block_signals;
uint32_t fenced_epoch = 0;  // what was done before it, some thread has fenced since

uint32_t new_moment(uint32_t block, uint32_t epoch) {
  now_.list.push_back({block, epoch});
  return now_.base + uint32_t(now_.list.size()) - 1;
}

uint32_t epoch(const Worker& w) { return now_[w.moment].epoch; }

ThreadOrder& of(const Fiber& f) {
  ThreadOrder& t = threads[size_t(f.number)];
  t.used = true;
  return t;
}

void complete(ThreadOrder& t) {
  t.known.learn(t.read);
  t.read.clear();
}

template <class Test>
bool knows(const Fiber& f, const Test& test) {
  return test(threads[size_t(f.number)].known) || test(block_knows);
}

// Accesses of several blocks: each of them must have told. Clocks within an epoch are not kept.
bool all_told(const Worker& w, const Fiber& f, uint32_t epoch) {
  return std::all_of(begun.begin(), begun.end(), [&](uint32_t block) {
    return block == w.block ||
           knows(f, [&](const Knowledge& k) { return k.reaches_epoch(block, epoch); });
  });
}

bool ordered_in_warp(const Worker& w, const Fiber& f, const Access& a) {
  const auto& seen = w.warps[size_t(f.warp())].seen[size_t(f.lane())];
  for (int lane = 0; lane < kWarp; ++lane) {
    if (lane != f.lane() && (a.lanes >> lane & 1) && seen[size_t(lane)] < a.stamp) return false;
  }
  return true;
}

}  // namespace

bool ordered(const Worker& w, const Fiber& f, const Access& a) {
  if (a.moment == 0) return true;
  if (!of_this_launch(a)) return !(overlaps && !f.awaited && a.moment >= before_.base);
  if (a.before && !f.awaited) return false;
  if (a.many_blocks) return all_told(w, f, a.stamp);
  const Moment& m = now_[a.moment];
  if (m.block == w.block && a.moment != w.moment) return true;  // an earlier epoch
  const int warp = int(a.thread) / kWarp;
  if (a.moment == w.moment) {
    if (a.many_warps) return false;
    if (warp == f.warp() && ordered_in_warp(w, f, a)) return true;
  }
  return knows(f, [&](const Knowledge& k) {
    return k.covers_epoch(m.block, m.epoch) ||
           (!a.many_warps && k.covers_lanes(m.block, m.epoch, warp, a.lanes, a.stamp));
  });
}

void join(const Worker& w, const Fiber& f, Access& others, const Access& mine) {
  if (ordered(w, f, others)) {
    others = mine;
  } else if (!of_this_launch(others)) {
    others = mine;
    others.before = 1;
  } else if (others.moment != w.moment) {
    const uint32_t latest = others.many_blocks ? others.stamp : now_[others.moment].epoch;
    others.stamp = std::max(latest, epoch(w));
    others.many_blocks = 1;
    others.second = w.moment;
  } else if (int(others.thread) / kWarp == f.warp() && !others.many_warps) {
    others.lanes |= mine.lanes;
    others.stamp = std::max(others.stamp, mine.stamp);
  } else {
    others.many_warps = 1;
    others.second = uint32_t(f.number);
  }
}

void note_global_write(const Worker& w, const Fiber& f) { of(f).unfenced = epoch(w) + 1; }

void tell(const Worker& w, uintptr_t address, bool shared) {
  ThreadOrder& t = of(*w.running);
  Signal& signal = (shared ? shared_signals : global_signals)[address];
  t.read.learn(signal.told);
  signal.told.learn(shared ? t.fenced_within : t.fenced);
  if (!shared) signal.told.learn(block_fenced);
  signal.blocks.insert(w.block);
  t.signals.insert(&signal);
}

bool has_told(const Fiber& f, uint32_t block) {
  const auto told = [block](const Signal* s) { return s->blocks.contains(block); };
  const auto& own = threads[size_t(f.number)].signals;
  return std::any_of(own.begin(), own.end(), told) ||
         std::any_of(block_signals.begin(), block_signals.end(), told);
}

bool of_this_launch(const Access& a) { return a.moment >= now_.base; }

uint32_t block_of(const Access& a) { return now_[a.moment].block; }

std::string name_of(const Access& a, const Worker& w, const Fiber& f) {
  if (!of_this_launch(a)) {
    Launch l;
    l.grid = before_.grid;
    l.block = before_.block;
    return name_of_thread(l, before_[a.moment].block, int(a.thread)) + " of the kernel before";
  }
  if (a.before && !f.awaited) return "a thread of the kernel before";
  if (a.many_blocks && block_of(a) == w.block) {
    return "a thread of block " + name_of_block(*w.launch, now_[a.second].block);
  }
  int thread = int(a.thread);
  if (a.moment == w.moment && thread == f.number) {
    const uint32_t others = a.lanes & ~(1u << f.lane());
    thread = a.many_warps ? int(a.second) : f.warp() * kWarp + std::countr_zero(others);
  }
  return name_of_thread(*w.launch, block_of(a), thread);
}

void begin_launch(const Launch& l) {
  if (!settings.race) return;
  before_ = std::move(now_);
  now_ = {before_.base + uint32_t(before_.list.size()), {}, l.grid, l.block};
  overlaps = l.overlaps;
  threads.assign(size_t(l.threads), {});
  begun.clear();
  global_signals.clear();
}

void begin_block(Worker& w) {
  if (!settings.race) return;
  w.moment = new_moment(w.block, 0);
  begun.push_back(w.block);
  block_knows.clear();
  block_fenced.clear();
  block_signals.clear();
  shared_signals.clear();
  fenced_epoch = 0;
  for (ThreadOrder& t : threads) {
    if (t.used) t = {};
  }
  for (WarpState& warp : w.warps) {
    warp.clock = 1;
    if (warp.synced) warp.seen = {};
    warp.synced = false;
  }
}

void barrier(Worker& w) {
  if (!settings.race) return;
  bool awaited = false, all_fenced = true;
  for (const Fiber& f : w.fibers) awaited = awaited || f.awaited;
  for (Fiber& f : w.fibers) f.awaited = awaited;
  for (ThreadOrder& t : threads) {
    if (!t.used) continue;
    complete(t);
    block_knows.learn(t.known);
    block_signals.insert(t.signals.begin(), t.signals.end());
    all_fenced = all_fenced && t.unfenced <= fenced_epoch;
    t.known.clear();
    t.signals.clear();
  }
  const uint32_t next = epoch(w) + 1;
  w.moment = new_moment(w.block, next);
  // If every thread has fenced what it wrote, any of them may tell of all that.
  if (all_fenced) block_fenced.learn(w.block, next);
}

void warp_sync(Worker& w, int number, uint32_t lanes) {
  if (!settings.race) return;
  WarpState& warp = w.warps[size_t(number)];
  warp.synced = true;
  Clocks together{};
  Knowledge known;
  bool awaited = false;
  const auto each = [&](const auto& visit) {
    for (int lane = 0; lane < kWarp; ++lane) {
      if (lanes >> lane & 1) visit(lane, w.fibers[size_t(number * kWarp + lane)]);
    }
  };
  each([&](int lane, const Fiber& f) {
    for (int other = 0; other < kWarp; ++other) {
      together[size_t(other)] =
          std::max(together[size_t(other)], warp.seen[size_t(lane)][size_t(other)]);
    }
    together[size_t(lane)] = warp.clock;
    awaited = awaited || f.awaited;
    if (ThreadOrder& t = threads[size_t(f.number)]; t.used) {
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
  Worker& w = *worker;
  const Fiber& f = *w.running;
  WarpState& warp = w.warps[size_t(f.warp())];
  ThreadOrder& t = of(f);
  complete(t);
  Clocks clocks = warp.seen[size_t(f.lane())];
  clocks[size_t(f.lane())] = warp.clock;
  ++warp.clock;
  const auto refresh = [&](Knowledge& fenced) {
    fenced.learn(w.block, epoch(w), f.warp(), clocks);
    fenced.learn(t.known);
    fenced.learn(block_knows);
  };
  refresh(t.fenced_within);
  if (scope != Scope::device) return;
  refresh(t.fenced);
  t.unfenced = 0;
  fenced_epoch = std::max(fenced_epoch, epoch(w));
}

}  // namespace opforge::sim
