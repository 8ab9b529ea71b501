// SPDX-License-Identifier: Apache-2.0
// Bulk copies. One that is asked for lands as late as it can, when no thread can go on without it,
// or at any time where a seed shuffles; what is read meanwhile is NaN.
#include "copies.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "memory.h"
#include "order.h"
#include "report.h"
#include "shadow.h"
#include "traffic.h"

extern "C" __attribute__((weak)) void* __asan_region_is_poisoned(void* start, size_t size);

namespace opforge::sim {

namespace {

uintptr_t number(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// Of whole bytes, not of tiles.
void check(const void* global, const void* shared, uint32_t bytes, bool writes, const void* pc) {
  check_aligned(shared, 16, "shared memory", pc);
  check_aligned(global, 16, "global memory", pc);
  if (bytes % 16 != 0) {
    refuse_copy("misaligned", "of " + std::to_string(bytes) + " bytes, which is no multiple of 16",
                pc);
  }
  check_shared_of_copy(shared, bytes, 16, pc);
  check_global_of_copy(global, bytes, writes, pc);
}

bool in_flight(const Async& all, const Fiber& f, uint32_t groups) {
  return std::any_of(all.copies.begin(), all.copies.end(), [&](const Copy& c) {
    return c.barrier == 0 && c.thread == &f && c.group < groups;
  });
}

void land(Worker& w, size_t which) {
  Async& all = *w.async;
  const Copy copy = all.copies[which];
  all.copies.erase(all.copies.begin() + ptrdiff_t(which));
  copy.move();
  Fiber& f = *copy.thread;
  if (copy.barrier != 0) {
    bytes_landed(copy.barrier, copy.bytes);
  } else if (f.state == State::at_copies && !in_flight(all, f, f.phase)) {
    f.state = State::ready;
  }
}

}  // namespace

void refuse_copy(const char* kind, const std::string& why, const void* pc) {
  report(kind, name_of(*worker->running) + " asks for a bulk copy " + why, pc);
  abandon();
}

void check_aligned(const void* address, size_t alignment, const char* what, const void* pc) {
  if (number(address) % alignment == 0) return;
  refuse_copy("misaligned",
              std::string("whose address in ") + what + " is " +
                  std::to_string(number(address) % alignment) + " bytes past a multiple of " +
                  std::to_string(alignment),
              pc);
}

void check_shared_of_copy(const void* shared, size_t bytes, size_t alignment, const void* pc) {
  check_aligned(shared, alignment, "shared memory", pc);
  const auto [owner, part] = shadow::shared_at(*worker, number(shared));
  if (owner != worker->running->block) {
    refuse_copy("bad-address",
                "that is not between global memory and the shared memory of its block", pc);
  }
  if (bytes > size_t(part->memory + part->bytes - static_cast<const char*>(shared))) {
    refuse_copy("out-of-bounds",
                "of " + std::to_string(bytes) + " bytes, more than there are from " +
                    shadow::memory_at(*worker, number(shared)),
                pc);
  }
}

void check_global_of_copy(const void* global, size_t bytes, bool writes, const void* pc) {
  if (shadow::shared_at(*worker, number(global)).part != nullptr) {
    refuse_copy("bad-address",
                "that is not between global memory and the shared memory of its block", pc);
  }
  if (__asan_region_is_poisoned != nullptr &&
      __asan_region_is_poisoned(const_cast<void*>(global), bytes) != nullptr) {
    refuse_copy("out-of-bounds", "of " + std::to_string(bytes) + " bytes, which leaves its tensor",
                pc);
  }
  // Memory that is not there is to be found now, for the thread that asks.
  worker->copies = pc;
  for (size_t i = 0; bytes > 0 && i < bytes + 4095; i += 4096) {
    auto* const byte =
        static_cast<char*>(const_cast<void*>(global)) + std::min<size_t>(i, bytes - 1);
    if (writes) {
      __atomic_fetch_or(byte, 0, __ATOMIC_RELAXED);  // what another host thread writes now stays
    } else {
      (void)*static_cast<const volatile char*>(byte);
    }
  }
  worker->copies = nullptr;
}

void check_published(const Barrier& b, const void* barrier, const std::string& does,
                     const void* pc) {
  if (b.published) return;
  report("missing-fence",
         name_of(*worker->running) + does + " the barrier in " +
             shadow::memory_at(*worker, number(barrier)) +
             ", which was made without publish_barriers() after it",
         pc);
}

Barrier& barrier_of_copy(void* barrier, const char* does, const void* pc) {
  Barrier& b = barrier_at(number(barrier), pc, true);
  check_published(b, barrier, std::string(does) + " that tells", pc);
  if (settings.race) shadow::access(number(barrier), 8, shadow::Kind::barrier, pc);
  return b;
}

void check_started(int rank, const char* does, const void* pc) {
  const Fiber& f = *worker->running;
  if (rank == f.block->rank || f.generation >= 2) return;
  report("not-running",
         name_of(f) + does + " block " + name_of_block(worker->blocks[size_t(rank)]) +
             ", which may not have started: no cluster barrier comes before",
         pc);
  abandon();
}

void land_later(Barrier& b, void* barrier, size_t bytes, std::function<void()> move,
                const void* pc) {
  b.asked_for += int64_t(bytes);
  b.unawaited = pc;
  b.unawaited_phase = b.phases;
  async_of(*worker).copies.push_back({worker->running, std::move(move), bytes, number(barrier), 0});
}

Stores& stores_of(const Fiber& f) {
  Stores& stores = async_of(*worker).stores[&f];
  if (stores.engine == 0) stores.engine = new_engine();
  return stores;
}

void store_later(Stores& stores, size_t bytes, std::function<void()> move, const void* pc) {
  stores.last = pc;
  stores.last_group = stores.committed;
  async_of(*worker).copies.push_back(
      {worker->running, std::move(move), bytes, 0, stores.committed});
}

void land_some(Worker& w) {
  if (w.async->copies.empty() || w.random() % 4 != 0) return;
  land(w, w.random() % w.async->copies.size());
}

bool land_oldest(Worker& w) {
  if (w.async == nullptr || w.async->copies.empty()) return false;
  land(w, 0);
  return true;
}

void bulk_copy(void* to, const void* from, uint32_t bytes, void* barrier) {
  const void* pc = __builtin_return_address(0);
  barrier_at(number(barrier), pc);
  check(from, to, bytes, false, pc);
  Barrier& b = barrier_of_copy(barrier, " asks for a bulk copy", pc);
  if (settings.traffic) traffic::copy(number(from), bytes, false);
  if (settings.race) {
    const shadow::Engine engine{b.engine, b.phases};
    shadow::access(number(from), bytes, shadow::Kind::read, pc);
    shadow::access(number(to), bytes, shadow::Kind::copy_to, pc, &engine);
  }
  std::memset(to, 0xff, bytes);  // neither the old nor yet the new can be relied on
  land_later(b, barrier, bytes, [=] { std::memcpy(to, from, bytes); }, pc);
}

void send(void* to, const void* value, size_t bytes, void* barrier, int rank) {
  const void* pc = __builtin_return_address(0);
  to = peer_address(to, rank, pc);
  barrier = peer_address(barrier, rank, pc);
  check_started(rank, " sends to", pc);
  Barrier& b = barrier_of_copy(barrier, " sends a value", pc);
  if (settings.race) {
    const shadow::Engine engine{b.engine, b.phases};
    shadow::access(number(to), bytes, shadow::Kind::send, pc, &engine);
  }
  shadow::release_reads(*worker->running, b.telling);
  std::memset(to, 0xff, bytes);
  const std::string sent(static_cast<const char*>(value), bytes);
  land_later(b, barrier, bytes, [=] { std::memcpy(to, sent.data(), bytes); }, pc);
}

void bulk_store(void* to, const void* from, uint32_t bytes) {
  const void* pc = __builtin_return_address(0);
  check(to, from, bytes, true, pc);
  Stores& stores = stores_of(*worker->running);
  if (settings.traffic) traffic::copy(number(to), bytes, true);
  if (settings.race) {
    const shadow::Engine reads{stores.engine, stores.committed};
    const shadow::Engine writes{stores.engine, shadow::Engine::kNever};
    shadow::access(number(from), bytes, shadow::Kind::copy_from, pc, &reads);
    shadow::access(number(to), bytes, shadow::Kind::copy_to, pc, &writes);
  }
  store_later(stores, bytes, [=] { std::memcpy(to, from, bytes); }, pc);
}

void bulk_commit() { ++stores_of(*worker->running).committed; }

void bulk_wait_read(int groups) {
  Worker& w = *worker;
  Fiber& f = *w.running;
  Stores& stores = stores_of(f);
  const uint32_t over = stores.committed - std::min(stores.committed, uint32_t(groups));
  if (in_flight(*w.async, f, over)) {
    f.site.pc = __builtin_return_address(0);
    f.phase = over;
    f.state = State::at_copies;
    suspend();
  }
  stores.awaited = std::max(stores.awaited, over);
  shadow::Knowledge known;
  known.learn_copies(stores.engine, over);
  shadow::acquire(f, known);
}

void fence_for_copies() { shadow::fence_for_copies(*worker->running); }

void check_stores(Worker& w, const Fiber& exits) {
  const auto found = w.async->stores.find(&exits);
  if (found == w.async->stores.end() || found->second.last == nullptr) return;
  if (found->second.last_group < found->second.awaited) return;
  report("in-flight",
         name_of(exits) +
             " exits without bulk_wait_read() for its bulk_store(), which may still "
             "read shared memory",
         found->second.last);
}

void check_copies(Worker& w, const Block& exits) {
  for (const auto& [address, b] : w.async->barriers) {
    if (b.block != &exits || b.unawaited == nullptr) continue;
    report("in-flight",
           "block " + name_of_block(exits) +
               " exits although nobody waited for what is copied or sent into its shared memory: "
               "phase " +
               std::to_string(b.unawaited_phase % 2) + " of the barrier in " +
               shadow::memory_at(w, address),
           b.unawaited);
  }
  std::erase_if(w.async->copies, [&](const Copy& c) {
    const bool store = c.barrier == 0;
    return (store ? c.thread->block : w.async->barriers.at(c.barrier).block) == &exits;
  });
}

}  // namespace opforge::sim
