// SPDX-License-Identifier: Apache-2.0
#include "order.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "shadow.h"

namespace opforge::sim {

namespace shadow {

namespace {

struct Moment {
  uint32_t block, epoch;
};

// What a thread published to other blocks with an atomic: everything its block did in earlier
// epochs, and what the lanes of its warp did up to these clocks. Without a fence: nothing.
struct Release {
  uint32_t block = 0;
  bool fenced = false;
  uint32_t epoch = 0;
  int warp = 0;
  std::array<uint32_t, kWarp> stamps{};
};

// What is known of other blocks.
using Knowledge = std::map<uint32_t, std::vector<Release>>;

struct Signal {
  std::vector<Release> releases;
};

struct ThreadOrder {
  Release fenced;                                // since the last fence
  std::vector<Release> passed_on;                // knowledge of others, as of the last fence
  std::vector<std::pair<Signal*, size_t>> seen;  // atomics read since, not yet fenced
  Knowledge known;
  bool used = false;
};

std::vector<Moment> moments, previous_moments;
uint32_t base = 1, previous_base = 1;  // the ids of the first moment of each
bool overlaps = false;
dim3 previous_grid, previous_block;
std::vector<ThreadOrder> orders;
Knowledge block_knows;
std::unordered_map<uintptr_t, Signal> signals;
uint32_t new_moment(uint32_t block, uint32_t epoch) {
  moments.push_back({block, epoch});
  return base + uint32_t(moments.size()) - 1;
}

void learn(Knowledge& known, const Release& release, uint32_t own_block) {
  if (release.block != own_block) known[release.block].push_back(release);
}

// A fence or barrier completes the acquisition of what was read from atomics before it.
void complete(ThreadOrder& t, uint32_t own_block) {
  for (const auto& [signal, count] : t.seen) {
    for (size_t i = 0; i < count; ++i) learn(t.known, signal->releases[i], own_block);
  }
  t.seen.clear();
}

// Whether something a thread of another block did is known to have happened before.
Order known_order(const Knowledge& known, const Access& a, const Moment& m) {
  const auto found = known.find(m.block);
  if (found == known.end()) return Order::none;
  Order best = Order::none;
  for (const Release& r : found->second) {
    if (!r.fenced) {
      best = Order::unfenced;
      continue;
    }
    if (r.epoch > m.epoch) return Order::before;
    if (r.epoch < m.epoch || a.many_warps || int(a.thread) / kWarp != r.warp) continue;
    bool all = true;
    for (int lane = 0; lane < kWarp; ++lane) {
      if ((a.lanes >> lane & 1) && r.stamps[lane] < a.stamp) all = false;
    }
    if (all) return Order::before;
    best = Order::unfenced;  // it signalled, but what it did came after its fence
  }
  return best;
}

void tick(WarpState& warp) { ++warp.clock; }

}  // namespace

Order order(const Worker& w, const Fiber& f, const Access& a) {
  if (a.moment == 0) return Order::before;
  if (a.moment < base) {
    const bool at_once = overlaps && !f.awaited && a.moment >= previous_base;
    return at_once ? Order::none : Order::before;
  }
  if (a.many_blocks) return Order::none;
  if (a.moment == w.moment) {
    if (a.many_warps || int(a.thread) / kWarp != f.warp()) return Order::none;
    const auto& seen = w.warps[f.warp()].seen[f.lane()];
    for (int lane = 0; lane < kWarp; ++lane) {
      if (lane != f.lane() && (a.lanes >> lane & 1) && seen[lane] < a.stamp) return Order::none;
    }
    return Order::before;
  }
  const Moment& m = moments[a.moment - base];
  if (m.block == w.block) return Order::before;  // an earlier epoch
  const ThreadOrder& t = orders[size_t(f.number)];
  const Order own = t.known.empty() ? Order::none : known_order(t.known, a, m);
  if (own == Order::before || block_knows.empty()) return own;
  const Order shared = known_order(block_knows, a, m);
  return shared == Order::none ? own : shared;
}

void tell(const Worker& w, uintptr_t address) {
  ThreadOrder& t = orders[size_t(w.running->number)];
  t.used = true;
  Signal& signal = signals[address];
  if (t.seen.empty() || t.seen.back().first != &signal) t.seen.emplace_back(&signal, 0);
  t.seen.back().second = signal.releases.size();
  Release release = t.fenced;
  release.block = w.block;
  const bool told =
      !signal.releases.empty() && !release.fenced && signal.releases.back().block == w.block;
  if (!told) signal.releases.push_back(release);
  for (const Release& r : t.passed_on) signal.releases.push_back(r);
}

bool of_this_launch(const Access& a) { return a.moment >= base; }

uint32_t block_of(const Access& a) { return moments[a.moment - base].block; }

std::string name_of(const Access& a) {
  if (a.moment < base) {
    Launch l;
    l.grid = previous_grid;
    l.block = previous_block;
    const uint32_t block = previous_moments[a.moment - previous_base].block;
    return name_of_thread(l, block, int(a.thread)) + " of the kernel before";
  }
  const uint32_t block = moments[a.moment - base].block;
  return name_of_thread(*worker->launch, block, int(a.thread));
}

void begin_launch(const Launch& l) {
  if (!settings.race) return;
  previous_base = base;
  base += uint32_t(moments.size());
  previous_moments.swap(moments);
  moments.clear();
  signals.clear();
  overlaps = l.overlaps;
  orders.assign(size_t(l.threads), {});
}

void begin_block(Worker& w) {
  if (!settings.race) return;
  w.moment = new_moment(w.block, 0);
  block_knows.clear();
  for (ThreadOrder& t : orders) {
    if (t.used) t = {};
  }
  for (WarpState& warp : w.warps) {
    warp.clock = 1;
    if (warp.synced) warp.seen = {};
    warp.synced = false;
  }
}

void end_block(Worker& w) {
  if (!settings.race) return;
  previous_grid = w.launch->grid;
  previous_block = w.launch->block;
}

void barrier(Worker& w) {
  if (!settings.race) return;
  for (ThreadOrder& t : orders) {
    if (!t.used) continue;
    complete(t, w.block);
    for (const auto& [block, releases] : t.known) {
      auto& known = block_knows[block];
      known.insert(known.end(), releases.begin(), releases.end());
    }
    t.known.clear();
  }
  w.moment = new_moment(w.block, moments[w.moment - base].epoch + 1);
}

void warp_sync(Worker& w, int number, uint32_t lanes) {
  if (!settings.race) return;
  WarpState& warp = w.warps[number];
  warp.synced = true;
  std::array<uint32_t, kWarp> together{};
  Knowledge known;
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    for (int other = 0; other < kWarp; ++other) {
      together[other] = std::max(together[other], warp.seen[lane][other]);
    }
    together[lane] = warp.clock;
    ThreadOrder& t = orders[size_t(number * kWarp + lane)];
    if (t.used) {
      complete(t, w.block);
      for (const auto& [block, releases] : t.known) {
        known[block].insert(known[block].end(), releases.begin(), releases.end());
      }
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    warp.seen[lane] = together;
    if (!known.empty()) {
      ThreadOrder& t = orders[size_t(number * kWarp + lane)];
      t.used = true;
      t.known = known;
    }
  }
  tick(warp);
}

}  // namespace shadow

void fence(Scope scope) {
  if (!settings.race || !in_kernel || scope != Scope::device) return;
  using namespace shadow;
  Worker& w = *worker;
  const Fiber& f = *w.running;
  WarpState& warp = w.warps[f.warp()];
  ThreadOrder& t = orders[size_t(f.number)];
  t.used = true;
  complete(t, w.block);
  t.fenced = {w.block, true, moments[w.moment - base].epoch, f.warp(), warp.seen[f.lane()]};
  t.fenced.stamps[f.lane()] = warp.clock;
  t.passed_on.clear();
  for (const Knowledge* known : {&t.known, &block_knows}) {
    for (const auto& [block, releases] : *known) {
      t.passed_on.insert(t.passed_on.end(), releases.begin(), releases.end());
    }
  }
  tick(warp);
}

}  // namespace opforge::sim
