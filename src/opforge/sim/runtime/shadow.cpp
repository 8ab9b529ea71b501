// SPDX-License-Identifier: Apache-2.0
#include "shadow.h"

#include <algorithm>

#include "memory.h"
#include "order.h"
#include "pages.h"
#include "report.h"

namespace opforge::sim {

namespace shadow {

Pages pages;

namespace {

void report_race(const Worker& w, const Fiber& f, uintptr_t address, Kind kind, const void* pc,
                 const Access& other, bool other_wrote, Order how) {
  const char* verb[] = {"reads ", "writes ", "changes with an atomic "};
  std::string reason;
  if (!of_this_launch(other)) {
    reason = "without await_previous() before it";
  } else if (block_of(other) != w.block) {
    reason = how == Order::unfenced
                 ? "and told of it through an atomic, but without a __threadfence() after it"
                 : "and nothing orders the two blocks";
  } else if (int(other.thread) / kWarp == f.warp()) {
    reason = "with neither a barrier nor a __syncwarp() between";
  } else {
    reason = "with no barrier between";
  }
  const std::string text = sim::name_of(f) + " " + verb[int(kind)] + memory_at(w, address) +
                           " that " + shadow::name_of(other) +
                           (other_wrote ? " wrote, " : " read, ") + reason;
  report(how == Order::unfenced ? "missing-fence" : "race", text, pc,
         reinterpret_cast<const void*>(uintptr_t(other.pc)), other_wrote ? "wrote" : "read");
}

bool is_poison(uintptr_t address, size_t bytes) {
  const auto* p = reinterpret_cast<const unsigned char*>(address);
  return std::all_of(p, p + bytes, [](unsigned char c) { return c == 0xff; });
}

void check_written(const Worker& w, const Fiber& f, uintptr_t address, size_t bytes,
                   const void* pc) {
  if (shared_part(w, address) == nullptr) {
    const Range* r = allocation(address);
    // The poison tells a fresh block from one that the host has used since.
    if (r == nullptr || !r->fresh || !is_poison(address, bytes)) return;
  }
  report("uninitialised",
         sim::name_of(f) + " reads " + memory_at(w, address) + ", which nothing wrote", pc);
}

}  // namespace

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
      if (of_this_launch(r)) {
        r.many_blocks = 1;
      } else {
        r = mine;
      }
    } else if (int(r.thread) / kWarp == f.warp() && !r.many_warps) {
      r.lanes |= bit;
      r.stamp = std::max(r.stamp, clock);
    } else {
      r.many_warps = 1;
    }
  });
}

}  // namespace shadow

void atomic_access(const void* address, size_t bytes) {
  if (!in_kernel) return;
  const auto at = reinterpret_cast<uintptr_t>(address);
  if (at % bytes != 0) {
    report("misaligned",
           name_of(*worker->running) + " does an atomic of " + std::to_string(bytes) +
               " bytes at an address that is no multiple of that",
           __builtin_return_address(0));
  }
  if (worker->running->stack.holds(address)) {
    report("bad-address",
           name_of(*worker->running) +
               " does an atomic on a local variable; only global and shared memory have them",
           __builtin_return_address(0));
  }
  check_time(__builtin_return_address(0));
  if (!settings.race) return;
  using namespace shadow;
  Worker& w = *worker;
  access(at, bytes, Kind::atomic, __builtin_return_address(0));
  if (shared_part(w, at) == nullptr) tell(w, at);
}

}  // namespace opforge::sim
