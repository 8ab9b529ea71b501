// SPDX-License-Identifier: Apache-2.0
// The barriers of opforge/core/async.h. A phase is over when all arrivals and all announced bytes
// have come; who waits for it is woken then.
#include <algorithm>
#include <atomic>

#include "copies.h"
#include "memory.h"
#include "order.h"
#include "report.h"
#include "shadow.h"

namespace opforge::sim {

namespace {

constexpr int64_t kMost = (1 << 20) - 1;  // arrivals, and bytes that are still to come

std::string at(uintptr_t address) {
  return "the barrier in " + shadow::memory_at(*worker, address);
}

void use(uintptr_t address, const void* pc) {
  if (settings.race) shadow::access(address, 8, shadow::Kind::barrier, pc);
}

[[noreturn]] void fail(const char* kind, const std::string& text, const void* pc) {
  report(kind, name_of(*worker->running) + text, pc);
  abandon();
}

void end_phase_if_over(uintptr_t address, Barrier& b, const void* pc) {
  if (b.missing > 0 || b.landed < b.announced) return;
  if (b.asked_for > b.announced) {
    report("barrier",
           std::to_string(b.asked_for) + " bytes are copied or sent for phase " +
               std::to_string(b.phases % 2) + " of " + at(address) + ", but " +
               std::to_string(b.announced) + " were announced by arrive_expecting()",
           pc);
    worker->abandoned = true;
    return;
  }
  ++b.phases;
  b.missing = b.arrivals;
  b.announced = b.landed = b.asked_for = 0;
  if (settings.race) {
    b.told.learn(b.telling);
    b.told.learn_copies(b.engine, b.phases);
    b.telling.clear();
  }
  for (Fiber& f : worker->fibers) {
    if (f.state == State::at_phase && f.awaits == address && f.phase != b.phases % 2) {
      f.state = State::ready;
    }
  }
}

}  // namespace

Async& async_of(Worker& w) {
  if (w.async == nullptr) w.async = std::make_shared<Async>();
  return *w.async;
}

uint32_t new_engine() {
  static std::atomic<uint32_t> last{0};
  return ++last;
}

Barrier& barrier_at(uintptr_t address, const void* pc, bool of_any_block) {
  auto& all = async_of(*worker).barriers;
  const Block* owner = shadow::shared_at(*worker, address).owner;
  if (owner != nullptr && owner != worker->running->block && !of_any_block) {
    fail("barrier", " uses " + at(address) + ", which only its own block can use", pc);
  }
  const auto found = all.find(address);
  if (found == all.end()) {
    fail("uninitialised", " uses " + at(address) + ", which nobody has made with init()", pc);
  }
  return found->second;
}

void bytes_landed(uintptr_t barrier, size_t bytes) {
  Barrier& b = worker->async->barriers.at(barrier);
  b.landed += int64_t(bytes);
  end_phase_if_over(barrier, b, b.unawaited);
}

std::string waits_for_copies(const Fiber& f) {
  if (f.state == State::at_copies) return "in bulk_wait_read() ";
  const Barrier& b = worker->async->barriers.at(f.awaits);
  std::string text = "in wait() for phase " + std::to_string(f.phase) + " of " + at(f.awaits);
  text += ", where " + std::to_string(b.missing) + " of " + std::to_string(b.arrivals) +
          (b.arrivals == 1 ? " arrival is" : " arrivals are") + " missing";
  if (b.announced != b.landed) {
    text += " and " + std::to_string(b.landed) + " of " + std::to_string(b.announced) +
            " announced bytes have come";
  }
  return text + ", ";
}

void barrier_init(void* barrier, int arrivals) {
  Worker& w = *worker;
  const auto address = reinterpret_cast<uintptr_t>(barrier);
  const void* pc = __builtin_return_address(0);
  if (shadow::shared_at(w, address).owner != w.running->block) {
    fail("barrier", " makes a barrier that is not in the shared memory of its block", pc);
  }
  if (arrivals < 1 || arrivals > kMost) {
    fail("barrier", " makes a barrier of " + std::to_string(arrivals) + " arrivals", pc);
  }
  if (settings.race) shadow::access(address, 8, shadow::Kind::write, pc);
  Barrier& b = async_of(w).barriers[address] = {};
  b.block = w.running->block;
  b.maker = w.running;
  b.arrivals = b.missing = arrivals;
  b.engine = new_engine();
}

void publish_barriers() {
  for (auto& [address, b] : async_of(*worker).barriers) {
    if (b.maker != worker->running || b.published) continue;
    b.published = true;
    b.published_in = b.maker->generation;
  }
}

void know_published_barriers(Worker& w) {
  if (w.async == nullptr) return;
  for (const auto& [address, b] : w.async->barriers) {
    const bool before = b.published_in / 2 + 1 == w.cluster_barriers && b.published_in % 2 == 0;
    if (b.published && before) shadow::fresh_shared(reinterpret_cast<void*>(address), 8);
  }
}

namespace {

void arrive(uintptr_t address, Barrier& b, uint32_t bytes, const void* pc) {
  const Fiber& f = *worker->running;
  use(address, pc);
  if (b.missing == 0) {
    fail("barrier",
         " arrives at " + at(address) + ", whose phase has had all " + std::to_string(b.arrivals) +
             (b.arrivals == 1 ? " arrival" : " arrivals"),
         pc);
  }
  --b.missing;
  b.announced += bytes;
  if (b.announced - b.landed > kMost) {
    fail("barrier", " announces more bytes than a barrier can count, 1048575", pc);
  }
  if (b.block == f.block) {
    shadow::release(f, b.telling);
  } else {
    // Who waits asks for what its own block did. The reads of others are over all the same.
    shadow::release_reads(f, b.telling);
    b.visitor = &f;
    b.visit = {pc, f.number, f.generation};
    b.visited_phase = b.phases;
  }
  end_phase_if_over(address, b, pc);
  if (worker->abandoned) abandon();
}

}  // namespace

void barrier_arrive(void* barrier, uint32_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(barrier);
  const void* pc = __builtin_return_address(0);
  arrive(address, barrier_at(address, pc), bytes, pc);
}

void barrier_arrive_at(void* barrier, int rank) {
  const void* pc = __builtin_return_address(0);
  barrier = peer_address(barrier, rank, pc);
  check_started(rank, " arrives at a barrier of", pc);
  const auto address = reinterpret_cast<uintptr_t>(barrier);
  Barrier& b = barrier_at(address, pc, true);
  if (b.block != worker->running->block) check_published(b, barrier, " arrives at", pc);
  arrive(address, b, 0, pc);
}

void check_arrivals(const Worker& w, const Block& exits) {
  uint32_t generation = 0;
  for (const Fiber& f : exits.fibers) generation = std::max(generation, f.generation);
  for (const auto& [address, b] : w.async->barriers) {
    if (b.block != &exits || b.visit.pc == nullptr) continue;
    if (b.visit.generation + 1 < generation / 2 * 2) continue;  // a cluster barrier came after it
    report("not-running",
           name_of(*b.visitor) + " arrives at a barrier of block " + name_of_block(exits) +
               ", which may have exited: nobody there waits for it, and no cluster_sync() comes "
               "after",
           b.visit.pc);
  }
}

void barrier_wait(void* barrier, uint32_t phase) {
  Fiber& f = *worker->running;
  const auto address = reinterpret_cast<uintptr_t>(barrier);
  const void* pc = __builtin_return_address(0);
  Barrier& b = barrier_at(address, pc);
  check_time(pc);
  use(address, pc);
  if (phase > 1) fail("barrier", " waits for phase " + std::to_string(phase) + ", not 0 or 1", pc);
  if (b.phases % 2 == phase) {
    f.site.pc = pc;
    f.awaits = address;
    f.phase = phase;
    f.state = State::at_phase;
    suspend();
  }
  if (b.unawaited_phase < b.phases) b.unawaited = nullptr;
  if (b.visited_phase < b.phases) b.visit.pc = nullptr;
  shadow::acquire(f, b.told);
}

}  // namespace opforge::sim
