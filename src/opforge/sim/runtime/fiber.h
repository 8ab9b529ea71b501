// SPDX-License-Identifier: Apache-2.0
// A stack of its own for every CUDA thread, and the switch between them.
#pragma once

#include <cstddef>

namespace opforge::sim {

struct Stack {
  static constexpr size_t kGuard = 4096;  // a page below that faults
  char* low = nullptr;
  char* high = nullptr;

  bool holds(const void* address) const { return address >= low && address < high; }
  bool holds_guard(const void* address) const { return address >= low - kGuard && address < low; }
};

// Stacks for the most threads a block may have, each above a page that faults; taken from and given
// back to a pool, because mapping them costs more than running a small block.
class Stacks {
 public:
  static constexpr size_t kCount = 1024;

  Stacks();
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stack operator[](size_t i) const;

 private:
  char* base_;
};

// A suspended flow of execution.
struct Context {
  void* stack_pointer = nullptr;
};

// Makes `context` start in entry() on `stack` when it is switched to. entry must not return.
void prepare(Context& context, const Stack& stack, void (*entry)());

// Leaves `from`, to be continued later unless it is `done`, and continues `to`, which lives on
// `stack`.
void switch_to(Context& from, Context& to, const Stack& stack, bool done = false);
// The first thing a fiber does once it runs.
void arrived();

}  // namespace opforge::sim
