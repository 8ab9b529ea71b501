// SPDX-License-Identifier: Apache-2.0
// Executes a cluster: its threads take turns on this host thread, each until it has to wait.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>

#include "async.h"
#include "report.h"
#include "shadow.h"
#include "state.h"
#include "traffic.h"

__thread opforge::sim::Index3 threadIdx, blockIdx, blockDim, gridDim;

namespace opforge::sim {

__thread Worker* worker = nullptr;
__thread bool in_kernel = false;

namespace {

bool same_place(const Where& a, const Where& b) {
  return a.line() == b.line() && std::strcmp(a.file_name(), b.file_name()) == 0;
}

int vote(const Block& b, Vote kind) {
  int yes = 0;
  for (const Fiber& f : b.fibers) {
    if (f.state == State::at_barrier) yes += f.predicate != 0;
  }
  if (kind == Vote::all) return yes == b.arrived;
  return kind == Vote::any ? yes > 0 : yes;
}

std::string waits_for(const Fiber& f) {
  static const char* const kOperations[] = {
      "__syncwarp",       "__shfl_sync",   "__shfl_up_sync", "__shfl_down_sync",
      "__shfl_xor_sync",  "__ballot_sync", "__all_sync",     "__any_sync",
      "__match_any_sync", "__reduce_sync", "warp_multiply"};
  std::string text;
  if (f.state == State::at_barrier) {
    text = "at the barrier ";
  } else if (f.state == State::at_phase || f.state == State::at_copies) {
    text = waits_for_copies(f);
  } else if (f.state == State::at_named_barrier) {
    text = waits_for_named(f);
  } else if (f.state == State::at_products) {
    text = waits_for_products(f);
  } else if (f.state == State::at_cluster) {
    text = "at the cluster's barrier ";
  } else {
    text = std::string("in ") + kOperations[int(f.offer.operation)] + " with mask " +
           in_hex(f.offer.mask) + " ";
  }
  return text + describe(f.site.pc);
}

// Which threads wait where.
std::string who_waits(std::span<const Fiber> fibers) {
  std::map<std::string, std::pair<int, const Fiber*>> groups;
  std::map<const void*, std::map<uint64_t, std::string>> told;  // asking for names is slow
  int exited = 0;
  for (const Fiber& f : fibers) {
    if (f.state == State::done) {
      ++exited;
      continue;
    }
    uint64_t detail = f.state == State::in_warp ? f.offer.mask : 0;
    if (f.state == State::at_phase || f.state == State::at_products) detail = f.awaits + f.phase;
    if (f.state == State::at_named_barrier) {
      detail = f.awaits + 16 * uint64_t(f.block->rank);
    }
    auto& text = told[f.site.pc][detail];
    if (text.empty()) text = waits_for(f);
    auto& group = groups[text];
    if (group.first++ == 0) group.second = &f;
  }
  std::string text;
  for (const auto& [place, group] : groups) {
    text += "\n      " + std::to_string(group.first) +
            (group.first == 1 ? " thread waits " : " threads wait ") + place + ", first " +
            name_of(*group.second);
  }
  if (exited > 0)
    text += "\n      " + std::to_string(exited) + (exited == 1 ? " has" : " have") + " exited";
  return text;
}

void release_barrier(Block& b) {
  const Fiber* first = nullptr;
  for (const Fiber& f : b.fibers) {
    if (f.state != State::at_barrier) continue;
    if (first == nullptr) first = &f;
    if (!same_place(f.site.where, first->site.where)) {
      report("barrier", "threads of a block wait at different barriers" + who_waits(b.fibers),
             f.site.pc);
      worker->abandoned = true;
      return;
    }
  }
  const int exited = int(b.fibers.size()) - b.alive;
  if (exited > 0 && !b.exited_early) {
    b.exited_early = true;
    warn("early-exit",
         std::to_string(exited) + " threads of block " + name_of_block(b) +
             " exited before the others wait at a barrier",
         first->site.pc);
  }
  const int result = first->vote == Vote::none ? 0 : vote(b, first->vote);
  b.arrived = 0;
  for (Fiber& f : b.fibers) {
    if (f.state != State::at_barrier) continue;
    f.state = State::ready;
    f.result = uint64_t(result);
  }
  shadow::barrier(b);
  traffic::barrier();
}

// Lanes at one __activemask in the source run together, once nothing else can.
bool resolve_active_mask(Worker& w) {
  for (Fiber& first : w.fibers) {
    if (first.state != State::at_active_mask) continue;
    uint32_t mask = 0;
    const auto& fibers = first.block->fibers;
    const int base = first.warp() * kWarp;
    const int end = std::min<int>(base + kWarp, int(fibers.size()));
    const auto together = [&](const Fiber& f) {
      return f.state == State::at_active_mask && same_place(f.site.where, first.site.where);
    };
    for (int i = base; i < end; ++i) mask |= uint32_t(together(fibers[i])) << (i - base);
    for (int i = base; i < end; ++i) {
      if ((mask >> (i - base) & 1) == 0) continue;
      fibers[i].result = mask;
      fibers[i].state = State::ready;
    }
    return true;
  }
  return false;
}

void exit_thread(Worker& w, Fiber& f) {
  Block& b = *f.block;
  if (w.async != nullptr) check_stores(w, f), check_products(w, f);
  f.state = State::done;
  --w.alive;
  --b.alive;
  WarpState& state = b.warps[f.warp()];
  state.alive &= ~(1u << f.lane());
  if (b.alive > 0 && b.arrived == b.alive) release_barrier(b);
  for (int i = 0; i < kWarp && state.waiting != 0; ++i) {
    if (state.waiting >> i & 1) try_complete(b, f.warp(), i);
  }
  if (f.generation % 2 != 0 && f.generation / 2 == w.cluster_barriers) --w.cluster_arrived;
  try_complete_cluster(w);
  if (b.alive > 0) return;
  shadow::end_block(b);
  if (w.async != nullptr) check_copies(w, b), check_arrivals(w, b);
}

void run_thread() {
  arrived();
  Worker& w = *worker;
  w.launch->kernel.run(w.launch->kernel.context);
  exit_thread(w, *w.running);
  suspend(true);
  std::abort();  // a thread that is done is never continued
}

void start_block(Block& b, const Launch& l, int64_t number) {
  const int64_t gx = l.grid.x, gy = l.grid.y;
  b.number = uint32_t(number);
  b.index = {Index::of(number % gx), Index::of(number / gx % gy), Index::of(number / gx / gy)};
  b.alive = l.threads;
  b.arrived = 0;
  b.exited_early = false;
  for (Fiber& f : b.fibers) {
    f.state = State::ready;
    f.context.stack_pointer = nullptr;  // not started
    f.awaited = false;
    f.generation = 0;
    f.cluster_ordered = 0;
  }
  for (size_t i = 0; i < b.warps.size(); ++i) {
    const int lanes = std::min(kWarp, l.threads - int(i) * kWarp);
    b.warps[i].alive = lanes == kWarp ? ~0u : (1u << lanes) - 1;
    b.warps[i].waiting = 0;
  }
  for (SharedPart& part : b.shared) part.taken = false;
}

void start_cluster(Worker& w, int64_t number) {
  for (Block& b : w.blocks) {
    start_block(b, *w.launch, number * int64_t(w.blocks.size()) + b.rank);
  }
  w.alive = int(w.fibers.size());
  w.cluster_arrived = 0;
  w.cluster_barriers = 0;
  w.relaxed = false;
  w.abandoned = false;
  w.async.reset();
  shadow::begin_cluster(w);
  w.started = now();
}

// What a library says about an address that it has made inaccessible: truth/guard/fault.cpp, if it
// is loaded. The kind of fault, or null for an address it knows nothing of.
using DescribeAddress = const char*(const void* address, bool writes, char* text, size_t size);

void report_crash(Worker& w) {
  const std::string who = name_of(*w.running);
  const auto [pc, address, writes] = w.crashed;
  if (w.running->stack.holds_guard(address)) {
    report("stack-overflow", who + " uses more stack than the simulator has for it", pc);
    return;
  }
  auto* const describe_address =
      reinterpret_cast<DescribeAddress*>(dlsym(RTLD_DEFAULT, "opforge_guard_describe"));
  char text[512];
  const char* kind = nullptr;
  if (describe_address != nullptr) kind = describe_address(address, writes, text, sizeof text);
  if (kind != nullptr) {
    report(kind, who + " " + text, pc);
  } else {
    report("bad-address", who + " accesses memory that is not there", pc);
  }
}

std::string name_of_cluster(const Worker& w) {
  std::string name = "block " + name_of_block(w.blocks.front());
  if (w.blocks.size() > 1)
    name = "the cluster of " + name + " to " + name_of_block(w.blocks.back());
  return name;
}

}  // namespace

void execute(Worker& w, int64_t number) {
  start_cluster(w, number);
  while (w.alive > 0 && !w.abandoned) {
    bool ran = false;
    if (settings.seed >= 0) std::shuffle(w.order.begin(), w.order.end(), w.random);
    for (const int i : w.order) {
      if (w.async != nullptr && settings.seed >= 0) land_some(w);
      Fiber& f = w.fibers[i];
      if (f.state != State::ready) continue;
      ran = true;
      if (f.context.stack_pointer == nullptr) {
        f.stack = w.free_stacks.back();
        w.free_stacks.pop_back();
        prepare(f.context, f.stack, run_thread);
      }
      w.running = &f;
      threadIdx = f.index;
      blockIdx = f.block->index;
      in_kernel = true;
      switch_to(w.scheduler, f.context, f.stack);
      in_kernel = false;
      if (f.state == State::done) w.free_stacks.push_back(f.stack);
      if (w.abandoned) break;
    }
    if (w.crashed.pc != nullptr) {
      report_crash(w);
      w.crashed = {};
      w.abandoned = true;
    } else if (w.late != nullptr) {
      report("timeout",
             name_of(*w.running) + " is still running after " + std::to_string(settings.timeout) +
                 " s (OPFORGE_SIM_TIMEOUT); blocks run one after the other here, so waiting for "
                 "another block's write never ends",
             w.late);
      w.abandoned = true;
    } else if (!ran && !w.abandoned && !resolve_active_mask(w) && !land_oldest(w)) {
      const Fiber* stuck = nullptr;
      for (const Fiber& f : w.fibers) {
        if (f.state != State::done && stuck == nullptr) stuck = &f;
      }
      report("deadlock", "no thread of " + name_of_cluster(w) + " can go on" + who_waits(w.fibers),
             stuck->site.pc);
      w.abandoned = true;
    }
  }
  w.running = nullptr;
  if (w.abandoned) w.launch->stop = true;
  traffic::end_cluster();
}

void suspend(bool done) {
  Worker& w = *worker;
  switch_to(w.running->context, w.scheduler, w.own_stack, done);
}

void abandon() {
  worker->abandoned = true;
  suspend(true);
  std::abort();
}

int block_barrier(Vote kind, int predicate, const Where& where) {
  Fiber& f = *worker->running;
  Block& b = *f.block;
  f.site = {where, __builtin_return_address(0)};
  f.vote = kind;
  f.predicate = predicate;
  f.state = State::at_barrier;
  if (++b.arrived == b.alive) release_barrier(b);
  suspend();  // also the last one to come: the others are to go on in their order
  return int(f.result);
}

uint32_t active_mask(const Where& where) {
  Fiber& f = *worker->running;
  f.site = {where, __builtin_return_address(0)};
  f.state = State::at_active_mask;
  suspend();
  return uint32_t(f.result);
}

std::string name_of(const Fiber& f) {
  return name_of_thread(*worker->launch, f.block->number, f.number);
}

namespace {

std::string triple(int64_t x, int64_t y, int64_t z) {
  return "(" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + ")";
}

}  // namespace

std::string name_of_thread(const Launch& l, uint32_t block, int thread) {
  const int bx = int(l.block.x), by = int(l.block.y);
  return "thread " + triple(thread % bx, thread / bx % by, thread / bx / by) + " of block " +
         name_of_block(l, block);
}

std::string name_of_block(const Launch& l, uint32_t block) {
  return triple(block % l.grid.x, block / l.grid.x % l.grid.y, block / l.grid.x / l.grid.y);
}

std::string name_of_block(const Block& b) { return name_of_block(*worker->launch, b.number); }

}  // namespace opforge::sim
