// SPDX-License-Identifier: Apache-2.0
#include "shadow.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>

#include "pages.h"
#include "report.h"

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

struct Range {
  uintptr_t low, high;
  bool fresh;  // nothing but kernels may have written to it
};

Pages pages;
std::vector<Moment> moments, previous_moments;
uint32_t base = 1, previous_base = 1;  // the ids of the first moment of each
bool overlaps = false;
dim3 previous_grid, previous_block;
std::vector<ThreadOrder> orders;
Knowledge block_knows;
std::unordered_map<uintptr_t, Signal> signals;
std::vector<Range> allocations;  // made by the op that runs
int depth = 0;                   // of ops calling ops

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

enum class Order { before, unfenced, none };

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

bool is_shared(const Worker& w, uintptr_t address) {
  for (const SharedPart& p : w.shared) {
    const auto low = reinterpret_cast<uintptr_t>(p.memory);
    if (p.taken && address >= low && address < low + p.bytes) return true;
  }
  return false;
}

const Range* allocation(uintptr_t address) {
  for (const Range& r : allocations) {
    if (address >= r.low && address < r.high) return &r;
  }
  return nullptr;
}

std::string memory_at(const Worker& w, uintptr_t address) {
  for (const SharedPart& p : w.shared) {
    const auto low = reinterpret_cast<uintptr_t>(p.memory);
    if (p.taken && address >= low && address < low + p.bytes) {
      return "shared memory (byte " + std::to_string(address - low) + " of " +
             std::to_string(p.bytes) + ")";
    }
  }
  if (const Range* r = allocation(address)) {
    return "global memory (byte " + std::to_string(address - r->low) + " of " +
           std::to_string(r->high - r->low) + " that the op allocated)";
  }
  return "global memory";
}

std::string name_of_access(const Access& a) {
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

void report_race(const Worker& w, const Fiber& f, uintptr_t address, Kind kind, const void* pc,
                 const Access& other, bool other_wrote, Order how) {
  const char* verb[] = {"reads ", "writes ", "changes with an atomic "};
  std::string reason;
  if (other.moment < base) {
    reason = "without await_previous() before it";
  } else if (moments[other.moment - base].block != w.block) {
    reason = how == Order::unfenced
                 ? "and told of it through an atomic, but without a __threadfence() after it"
                 : "and nothing orders the two blocks";
  } else if (int(other.thread) / kWarp == f.warp()) {
    reason = "with neither a barrier nor a __syncwarp() between";
  } else {
    reason = "with no barrier between";
  }
  const std::string text = name_of(f) + " " + verb[int(kind)] + memory_at(w, address) + " that " +
                           name_of_access(other) + (other_wrote ? " wrote, " : " read, ") + reason;
  report(how == Order::unfenced ? "missing-fence" : "race", text, pc,
         reinterpret_cast<const void*>(uintptr_t(other.pc)), other_wrote ? "wrote" : "read");
}

bool is_poison(uintptr_t address, size_t bytes) {
  const auto* p = reinterpret_cast<const unsigned char*>(address);
  return std::all_of(p, p + bytes, [](unsigned char c) { return c == 0xff; });
}

void check_written(const Worker& w, const Fiber& f, uintptr_t address, size_t bytes,
                   const void* pc) {
  if (!is_shared(w, address)) {
    const Range* r = allocation(address);
    // The poison tells a fresh block from one that the host has used since.
    if (r == nullptr || !r->fresh || !is_poison(address, bytes)) return;
  }
  report("uninitialised", name_of(f) + " reads " + memory_at(w, address) + ", which nothing wrote",
         pc);
}

void tick(WarpState& warp) { ++warp.clock; }

}  // namespace

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

void fresh_shared(const void* address, size_t bytes) {
  if (settings.race) pages.forget(reinterpret_cast<uintptr_t>(address), bytes);
}

void access(uintptr_t address, size_t bytes, Kind kind, const void* pc) {
  Worker& w = *worker;
  const Fiber& f = *w.running;
  const uint32_t clock = w.warps[f.warp()].clock, bit = 1u << f.lane();
  Access mine;
  mine.pc = reinterpret_cast<uintptr_t>(pc);
  mine.thread = uint64_t(f.number);
  mine.atomic = kind == Kind::atomic;
  mine.moment = w.moment;
  mine.stamp = clock;
  mine.lanes = bit;
  pages.visit(address, bytes, [&](Cell& cell, uintptr_t at, size_t size) {
    if (!(kind == Kind::atomic && cell.write.atomic)) {
      if (const Order o = order(w, f, cell.write); o != Order::before) {
        report_race(w, f, at, kind, pc, cell.write, true, o);
      }
    }
    if (kind != Kind::write && cell.write.moment == 0) check_written(w, f, at, size, pc);
    if (kind != Kind::read) {
      if (const Order o = order(w, f, cell.read); o != Order::before) {
        report_race(w, f, at, kind, pc, cell.read, false, o);
      }
      cell.write = mine;
      cell.read = {};
      return;
    }
    Access& r = cell.read;
    if (order(w, f, r) == Order::before) {
      r = mine;
    } else if (r.moment != w.moment) {
      r.many_blocks = r.moment >= base;
      if (r.moment < base) r = mine;
    } else if (int(r.thread) / kWarp == f.warp() && !r.many_warps) {
      r.lanes |= bit;
      r.stamp = std::max(r.stamp, clock);
    } else {
      r.many_warps = 1;
    }
  });
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

void atomic_access(const void* address, size_t bytes) {
  if (!in_kernel) return;
  const auto at = reinterpret_cast<uintptr_t>(address);
  if (at % bytes != 0) {
    report("misaligned",
           name_of(*worker->running) + " does an atomic of " + std::to_string(bytes) +
               " bytes at an address that is no multiple of that",
           __builtin_return_address(0));
  }
  check_time(__builtin_return_address(0));
  if (!settings.race) return;
  using namespace shadow;
  Worker& w = *worker;
  access(at, bytes, Kind::atomic, __builtin_return_address(0));
  if (is_shared(w, at)) return;
  ThreadOrder& t = orders[size_t(w.running->number)];
  t.used = true;
  Signal& signal = signals[at];
  if (t.seen.empty() || t.seen.back().first != &signal) t.seen.emplace_back(&signal, 0);
  t.seen.back().second = signal.releases.size();
  Release release = t.fenced;
  release.block = w.block;
  const bool told =
      !signal.releases.empty() && !release.fenced && signal.releases.back().block == w.block;
  if (!told) signal.releases.push_back(release);
  for (const Release& r : t.passed_on) signal.releases.push_back(r);
}

void allocated(void* address, size_t bytes) {
  std::memset(address, 0xff, bytes);  // NaN in every floating point type
  if (!settings.race) return;
  const auto low = reinterpret_cast<uintptr_t>(address);
  shadow::pages.forget(low, bytes);
  std::erase_if(shadow::allocations,
                [=](const shadow::Range& r) { return low < r.high && r.low < low + bytes; });
  shadow::allocations.push_back({low, low + bytes, true});
}

void written_by_host(const void* address, size_t) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (shadow::Range& r : shadow::allocations) {
    if (at >= r.low && at < r.high) r.fresh = false;
  }
}

void enter_op() {
  constexpr size_t kRoom = 256 << 20;
  if (shadow::depth++ == 0 && shadow::pages.bytes() > kRoom) shadow::pages.clear();
}

void returns(const void* address, size_t bytes, size_t element) {
  if (!settings.race || bytes == 0) return;
  const auto low = reinterpret_cast<uintptr_t>(address);
  const shadow::Range* r = shadow::allocation(low);
  if (r == nullptr || !r->fresh) return;
  size_t missing = 0, first = 0;
  shadow::pages.visit(low, bytes, [&](const shadow::Cell& cell, uintptr_t at, size_t size) {
    if (cell.write.moment != 0) return;
    if (missing == 0) first = (at - low) / element;
    missing += size;
  });
  if (missing > 0) {
    report("unwritten",
           std::to_string((missing + element - 1) / element) + " of " +
               std::to_string(bytes / element) +
               " elements of an output were never written, the first of them element " +
               std::to_string(first),
           nullptr);
  }
}

void finish_op() { throw_reports(); }

void leave_op() {
  if (--shadow::depth == 0) shadow::allocations.clear();
}

}  // namespace opforge::sim
