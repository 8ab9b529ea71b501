// SPDX-License-Identifier: Apache-2.0
// Executes a block: its threads take turns on this host thread, each until it has to wait.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>

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

int vote(const Worker& w, Vote kind) {
  int yes = 0;
  for (const Fiber& f : w.fibers) {
    if (f.state == State::at_barrier) yes += f.predicate != 0;
  }
  if (kind == Vote::all) return yes == w.arrived;
  return kind == Vote::any ? yes > 0 : yes;
}

std::string waits_for(const Fiber& f) {
  static const char* const kOperations[] = {
      "__syncwarp",    "__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync",
      "__ballot_sync", "__all_sync",  "__any_sync",     "__match_any_sync", "__reduce_sync"};
  std::ostringstream text;
  if (f.state == State::at_barrier) {
    text << "at the barrier ";
  } else {
    text << "in " << kOperations[int(f.offer.operation)] << " with mask 0x" << std::hex
         << f.offer.mask << std::dec << " ";
  }
  text << describe(f.site.pc);
  return text.str();
}

// Which threads wait where.
std::string who_waits(const Worker& w) {
  std::map<std::string, std::pair<int, const Fiber*>> groups;
  std::map<const void*, std::map<uint32_t, std::string>> told;  // asking for names is slow
  int exited = 0;
  for (const Fiber& f : w.fibers) {
    if (f.state == State::done) {
      ++exited;
      continue;
    }
    auto& text = told[f.site.pc][f.state == State::at_barrier ? 0 : f.offer.mask];
    if (text.empty()) text = waits_for(f);
    auto& group = groups[text];
    if (group.first++ == 0) group.second = &f;
  }
  std::ostringstream text;
  for (const auto& [place, group] : groups) {
    text << "\n      " << group.first << (group.first == 1 ? " thread waits " : " threads wait ")
         << place << ", first " << name_of(*group.second);
  }
  if (exited > 0) text << "\n      " << exited << (exited == 1 ? " has" : " have") << " exited";
  return text.str();
}

void release_barrier(Worker& w) {
  const Fiber* first = nullptr;
  for (const Fiber& f : w.fibers) {
    if (f.state != State::at_barrier) continue;
    if (first == nullptr) first = &f;
    if (!same_place(f.site.where, first->site.where)) {
      report("barrier", "threads of a block wait at different barriers" + who_waits(w), f.site.pc);
      w.abandoned = true;
      return;
    }
  }
  if (w.alive < w.launch->threads && !w.exited_early) {
    w.exited_early = true;
    warn("early-exit",
         std::to_string(w.launch->threads - w.alive) + " threads of block " + name_of_block(w) +
             " exited before the others wait at a barrier",
         first->site.pc);
  }
  const int result = first->vote == Vote::none ? 0 : vote(w, first->vote);
  w.arrived = 0;
  for (Fiber& f : w.fibers) {
    if (f.state != State::at_barrier) continue;
    f.state = State::ready;
    f.result = uint64_t(result);
  }
  shadow::barrier(w);
  traffic::barrier();
}

// Lanes at one __activemask in the source run together, once nothing else can.
bool resolve_active_mask(Worker& w) {
  for (Fiber& first : w.fibers) {
    if (first.state != State::at_active_mask) continue;
    uint32_t mask = 0;
    const int base = first.warp() * kWarp;
    const int end = std::min<int>(base + kWarp, int(w.fibers.size()));
    const auto together = [&](const Fiber& f) {
      return f.state == State::at_active_mask && same_place(f.site.where, first.site.where);
    };
    for (int i = base; i < end; ++i) mask |= uint32_t(together(w.fibers[i])) << (i - base);
    for (int i = base; i < end; ++i) {
      if ((mask >> (i - base) & 1) == 0) continue;
      w.fibers[i].result = mask;
      w.fibers[i].state = State::ready;
    }
    return true;
  }
  return false;
}

void exit_thread(Worker& w, Fiber& f) {
  f.state = State::done;
  --w.alive;
  WarpState& state = w.warps[f.warp()];
  state.alive &= ~(1u << f.lane());
  if (w.alive > 0 && w.arrived == w.alive) release_barrier(w);
  for (int i = 0; i < kWarp && state.waiting != 0; ++i) {
    if (state.waiting >> i & 1) try_complete(w, f.warp(), i);
  }
}

void run_thread() {
  arrived();
  Worker& w = *worker;
  w.launch->kernel.run(w.launch->kernel.context);
  exit_thread(w, *w.running);
  suspend(true);
  std::abort();  // a thread that is done is never continued
}

void start_block(Worker& w, int64_t number) {
  const Launch& l = *w.launch;
  const int64_t gx = l.grid.x, gy = l.grid.y;
  w.block = uint32_t(number);
  blockIdx = {Index::of(number % gx), Index::of(number / gx % gy), Index::of(number / gx / gy)};
  w.alive = l.threads;
  w.arrived = 0;
  w.abandoned = w.exited_early = false;
  for (Fiber& f : w.fibers) {
    f.state = State::ready;
    f.context.stack_pointer = nullptr;  // not started
    f.awaited = false;
  }
  for (size_t i = 0; i < w.warps.size(); ++i) {
    const int lanes = std::min(kWarp, l.threads - int(i) * kWarp);
    w.warps[i].alive = lanes == kWarp ? ~0u : (1u << lanes) - 1;
    w.warps[i].waiting = 0;
  }
  for (SharedPart& part : w.shared) part.taken = false;
  shadow::begin_block(w);
  w.started = now();
}

}  // namespace

void execute(Worker& w, int64_t number) {
  start_block(w, number);
  while (w.alive > 0 && !w.abandoned) {
    bool ran = false;
    if (settings.seed >= 0) std::shuffle(w.order.begin(), w.order.end(), w.random);
    for (const int i : w.order) {
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
      in_kernel = true;
      switch_to(w.scheduler, f.context, f.stack);
      in_kernel = false;
      if (f.state == State::done) w.free_stacks.push_back(f.stack);
      if (w.abandoned) break;
    }
    if (w.crashed.pc != nullptr) {
      const bool overflow = w.running->stack.holds_guard(w.crashed.address);
      report(overflow ? "stack-overflow" : "bad-address",
             name_of(*w.running) + (overflow ? " uses more stack than the simulator has for it"
                                             : " accesses memory that is not there"),
             w.crashed.pc);
      w.crashed = {};
      w.abandoned = true;
    } else if (w.late != nullptr) {
      report("timeout",
             name_of(*w.running) + " is still running after " + std::to_string(settings.timeout) +
                 " s (OPFORGE_SIM_TIMEOUT); blocks run one after the other here, so waiting for "
                 "another block's write never ends",
             w.late);
      w.abandoned = true;
    } else if (!ran && !resolve_active_mask(w)) {
      const Fiber* stuck = nullptr;
      for (const Fiber& f : w.fibers) {
        if (f.state != State::done && stuck == nullptr) stuck = &f;
      }
      report("deadlock", "no thread of block " + name_of_block(w) + " can go on" + who_waits(w),
             stuck->site.pc);
      w.abandoned = true;
    }
  }
  w.running = nullptr;
  if (w.abandoned) w.launch->stop = true;
  traffic::end_block(w);
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
  Worker& w = *worker;
  Fiber& f = *w.running;
  f.site = {where, __builtin_return_address(0)};
  f.vote = kind;
  f.predicate = predicate;
  f.state = State::at_barrier;
  if (++w.arrived == w.alive) release_barrier(w);
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
  return name_of_thread(*worker->launch, worker->block, f.number);
}

std::string name_of_thread(const Launch& l, uint32_t block, int thread) {
  std::ostringstream text;
  const int bx = int(l.block.x), by = int(l.block.y);
  text << "thread (" << thread % bx << "," << thread / bx % by << "," << thread / bx / by
       << ") of block " << name_of_block(l, block);
  return text.str();
}

std::string name_of_block(const Launch& l, uint32_t block) {
  std::ostringstream text;
  text << "(" << block % l.grid.x << "," << block / l.grid.x % l.grid.y << ","
       << block / l.grid.x / l.grid.y << ")";
  return text.str();
}

std::string name_of_block(const Worker& w) { return name_of_block(*w.launch, w.block); }

}  // namespace opforge::sim
