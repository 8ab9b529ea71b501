// SPDX-License-Identifier: Apache-2.0
// Barriers among some threads of a block (opforge/core/warpgroup.h).
#include <opforge_sim/tiles.h>

#include <algorithm>

#include "async.h"
#include "order.h"
#include "report.h"
#include "traffic.h"

namespace opforge::sim {

namespace {

[[noreturn]] void fail(const std::string& text, const void* pc) {
  report("barrier", name_of(*worker->running) + text, pc);
  abandon();
}

}  // namespace

void named_barrier(int id, int count, bool wait) {
  Fiber& f = *worker->running;
  const void* pc = __builtin_return_address(0);
  if (id < 1 || id > 15) {
    fail(" uses barrier " + std::to_string(id) + " of its block; ids are 1 to 15", pc);
  }
  if (count < kWarp || count % kWarp != 0 || count > worker->launch->threads) {
    fail(" uses barrier " + std::to_string(id) + " of its block for " + std::to_string(count) +
             " threads; a multiple of 32 is needed, and the block has " +
             std::to_string(worker->launch->threads),
         pc);
  }
  NamedBarrier& b = async_of(*worker).named[{f.block, id}];
  if (!b.came.empty() && b.count != count) {
    fail(" comes to barrier " + std::to_string(id) + " for " + std::to_string(count) +
             " threads, but " + name_of(*b.came.front()) + " for " + std::to_string(b.count),
         pc);
  }
  if (std::find(b.came.begin(), b.came.end(), &f) != b.came.end()) {
    fail(" comes to barrier " + std::to_string(id) + " again, before all " + std::to_string(count) +
             " threads have come",
         pc);
  }
  b.count = count;
  b.came.push_back(&f);
  b.awaited = b.awaited || f.awaited;
  shadow::release(f, b.telling);
  if (wait) {
    f.site.pc = pc;
    f.awaits = uintptr_t(id);
    f.state = State::at_named_barrier;
  }
  if (int(b.came.size()) == count) {
    const NamedBarrier over = std::move(b);
    b = {};
    for (Fiber* waits : over.came) {
      if (waits->state != State::at_named_barrier || waits->awaits != uintptr_t(id)) continue;
      waits->state = State::ready;
      waits->awaited = over.awaited;
      shadow::acquire(*waits, over.telling);
    }
    traffic::barrier();
  }
  if (wait) suspend();  // also the last one to come: the others are to go on in their order
}

std::string waits_for_named(const Fiber& f) {
  const NamedBarrier& b = worker->async->named.at({f.block, int(f.awaits)});
  return "at barrier " + std::to_string(f.awaits) + ", where " + std::to_string(b.came.size()) +
         " of " + std::to_string(b.count) + " threads have come, ";
}

}  // namespace opforge::sim
