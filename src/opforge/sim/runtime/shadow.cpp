// SPDX-License-Identifier: Apache-2.0
#include "shadow.h"

#include <algorithm>

#include "memory.h"
#include "order.h"
#include "pages.h"
#include "report.h"
#include "traffic.h"

namespace opforge::sim {

namespace shadow {

Pages pages;

namespace {

const char* const kVerbs[] = {" reads ",
                              " writes ",
                              " changes with an atomic ",
                              " uses the barrier in ",
                              " asks for a bulk copy to ",
                              " asks for a bulk copy from ",
                              " sends to ",
                              " multiplies what is in ",
                              " asks for a piece_copy() to "};

std::string why_not_over(const Access& copy, bool wrote) {
  if (copy.multiplied()) return "without warpgroup_wait() before it";
  if (copy.piece()) return "without piece_wait() by that thread before it";
  if (!wrote) return "without bulk_wait_read() before it";
  if (copy.stamp == Engine::kNever) return "which is seen in later kernels only";
  const std::string early = copy.sent() ? "sent" : "asked for";
  return "without a wait() for phase " + std::to_string(copy.stamp % 2) + " of its barrier" +
         (copy.stamp > 0 ? ", or it was " + early + " before it was read" : "");
}

void report_race(Worker& w, const Fiber& f, uintptr_t address, Kind kind, const void* pc,
                 const Access& other, bool other_wrote) {
  const bool of_before = !of_this_launch(other) || (other.before && !f.awaited);
  const bool of_others = !of_before && (other.many_blocks || block_of(other) != f.block->number);
  const bool told = of_others && has_told(f, block_of(other));
  std::string reason;
  if (of_before) {
    reason = "without await_previous() before it";
  } else if (other.copy) {
    reason = why_not_over(other, other_wrote);
  } else if (told) {
    reason = "and told of it through an atomic, but without a __threadfence() after it";
  } else if (of_others && w.blocks.size() > 1 && same_cluster(block_of(other), f.block->number)) {
    reason = kind == Kind::send ? "with nothing to tell that this was over"
                                : "with no cluster_sync() between";
  } else if (of_others) {
    reason = "and nothing orders the two blocks";
  } else if (int(other.thread) / kWarp == f.warp() && !other.many_warps) {
    reason = "with neither a barrier nor a __syncwarp() between";
  } else {
    reason = "with no barrier between";
  }
  const bool copy = other.copy && !of_before;
  const bool sent = copy && other.sent();
  const char* did = sent ? "sent" : other_wrote ? "wrote" : "read";
  const std::string text = sim::name_of(f) + kVerbs[int(kind)] + memory_at(w, address) + " that " +
                           (copy && other.multiplied() ? "a product of "
                            : copy && other.piece()    ? "a piece_copy() of "
                            : copy && !sent            ? "a bulk copy of "
                                                       : "") +
                           shadow::name_of(other, f, !other_wrote) + " " + did + ", " + reason;
  const char* label = copy && !sent ? "asked for" : did;
  report(told ? "missing-fence" : "race", text, pc,
         reinterpret_cast<const void*>(uintptr_t(other.pc)), label);
}

// Copies do not see what was written in the ordinary way until a fence says so.
void check_fenced(Worker& w, const Fiber& f, uintptr_t address, Kind kind, const void* pc,
                  const Access& write) {
  if (write.moment == 0 || write.copy || !of_this_launch(write)) return;
  if (fenced_for_copies(write) || shared_at(w, address).part == nullptr) return;
  report("missing-fence",
         sim::name_of(f) + kVerbs[int(kind)] + memory_at(w, address) + " that " +
             shadow::name_of(write, f, false) + " wrote, without fence_for_copies() after it",
         pc, reinterpret_cast<const void*>(uintptr_t(write.pc)), "wrote");
}

void check_written(Worker& w, const Fiber& f, uintptr_t address, size_t bytes, const void* pc) {
  if (shared_at(w, address).part == nullptr) {
    const Range* r = allocation(address);
    // The poison tells a fresh block from one that the host has used since.
    if (r == nullptr || !r->fresh || !is_poison(address, bytes)) return;
  }
  report("uninitialised",
         sim::name_of(f) + " reads " + memory_at(w, address) + ", which nothing wrote", pc);
}

void report_not_running(const Worker& w, const Block& there, uint32_t block, int thread,
                        const char* why, const void* pc) {
  report("not-running",
         name_of_thread(*w.launch, block, thread) + " accesses shared memory of block " +
             name_of_block(there) + ", which " + why,
         pc);
}

// Another block's shared memory is there from when all blocks have started until that one exits.
void visit(Worker& w, const Fiber& f, Block& there, Kind kind, const void* pc) {
  if (f.generation < 2) {
    report_not_running(w, there, f.block->number, f.number,
                       "may not have started: no cluster_sync() comes before", pc);
  } else if (there.alive == 0) {
    report_not_running(w, there, f.block->number, f.number, "has exited", pc);
  }
  // That block waits for what is sent or copied to it.
  if (kind == Kind::send || kind == Kind::copy_to || kind == Kind::barrier) return;
  there.visits[size_t(f.block->rank)] = {pc, f.number, f.generation};
}

}  // namespace

void end_block(Block& b) {
  if (!settings.race) return;
  const auto last =
      std::max_element(b.fibers.begin(), b.fibers.end(),
                       [](const Fiber& a, const Fiber& c) { return a.generation < c.generation; });
  for (size_t rank = 0; rank < b.visits.size(); ++rank) {
    const Visit& v = b.visits[rank];
    // Over when a barrier of the cluster came after it.
    if (v.pc == nullptr || v.generation + 1 < last->generation / 2 * 2) continue;
    report_not_running(*worker, b, worker->blocks[rank].number, v.thread,
                       "may have exited: no cluster_sync() comes after", v.pc);
  }
}

void fresh_shared(const void* address, size_t bytes) {
  if (settings.race) pages.forget(reinterpret_cast<uintptr_t>(address), bytes);
}

void access(uintptr_t address, size_t bytes, Kind kind, const void* pc, const Engine* engine) {
  Worker& w = *worker;
  const Fiber& f = *w.running;
  const bool writes =
      kind == Kind::write || kind == Kind::copy_to || kind == Kind::send || kind == Kind::piece;
  const bool reads = kind == Kind::read || kind == Kind::copy_from || kind == Kind::multiply;
  Access mine;
  mine.pc = reinterpret_cast<uintptr_t>(pc);
  mine.thread = uint64_t(f.number);
  mine.moment = f.moment;
  mine.copy = engine != nullptr;
  if (kind == Kind::send) mine.second = Access::kSent;
  if (kind == Kind::multiply) mine.second = Access::kProduct;
  if (kind == Kind::piece) mine.second = Access::kPiece;
  mine.stamp = engine ? engine->phase : f.block->warps[size_t(f.warp())].clock;
  mine.lanes = engine ? engine->number : 1u << f.lane();
  if (kind == Kind::write || w.blocks.size() > 1) {
    Block* owner = shared_at(w, address).owner;
    if (owner == nullptr && kind == Kind::write) note_global_write(f);
    if (owner != nullptr && owner != f.block) visit(w, f, *owner, kind, pc);
  }
  pages.visit(address, bytes, [&](Cell& cell, uintptr_t at, size_t size) {
    const auto check = [&](const Access& a, bool wrote) {
      if (!ordered(f, a, !wrote)) report_race(w, f, at, kind, pc, a, wrote);
    };
    check(cell.write, true);
    if (writes || reads) check(cell.atomic, true);
    if (!reads) check(cell.read, false);
    if (engine && kind != Kind::send && kind != Kind::piece)
      check_fenced(w, f, at, kind, pc, cell.write);
    if (!writes && kind != Kind::barrier && !cell.written()) check_written(w, f, at, size, pc);
    if (writes) {
      cell = {mine, {}, {}};
    } else if (kind != Kind::barrier) {
      join(f, reads ? cell.read : cell.atomic, mine, reads);
    }
  });
}

void note_writes(uintptr_t address, size_t bytes, std::vector<Written>& writes) {
  pages.visit(address, bytes, [&](const Cell& cell, uintptr_t at, size_t) {
    const auto known = [&](const Written& w) { return w.by == cell.write; };
    if (std::none_of(writes.rbegin(), writes.rend(), known)) writes.push_back({cell.write, at});
  });
}

void check_writes(const std::vector<Written>& writes, Kind kind, const void* pc) {
  const Fiber& f = *worker->running;
  for (const Written& w : writes) {
    if (!ordered(f, w.by, false)) report_race(*worker, f, w.address, kind, pc, w.by, true);
  }
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
  if (settings.traffic) traffic::access(at, bytes, true, __builtin_return_address(0));
  if (!settings.race) return;
  shadow::access(at, bytes, shadow::Kind::atomic, __builtin_return_address(0));
  shadow::tell(*worker, at, shadow::shared_at(*worker, at).part != nullptr);
}

void expect_global(const void* address) {
  if (!in_kernel) return;
  const bool local = worker->running->stack.holds(address);
  if (!local && !shadow::shared_at(*worker, reinterpret_cast<uintptr_t>(address)).part) return;
  report("bad-address",
         name_of(*worker->running) + " stores a Packed to " +
             (local ? "a local variable" : "shared memory") +
             " by an instruction for global memory; store a Vec there",
         __builtin_return_address(0));
}

}  // namespace opforge::sim
