// SPDX-License-Identifier: Apache-2.0
#include "fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

#if !defined(__x86_64__)
#error "the simulator switches contexts on x86-64 only"
#endif

// AddressSanitizer must know which stack it looks at. Absent unless it is loaded.
extern "C" {
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** save, const void* bottom,
                                                          size_t size);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void* address, size_t size);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* save, const void** bottom,
                                                           size_t* size);
}

// The callee-saved registers go onto the stack being left and come off the one being entered. The
// signal mask and the floating point modes are the same for all fibers, so no system call.
asm(R"(
.text
.globl opforge_sim_switch
.hidden opforge_sim_switch
.type opforge_sim_switch, @function
opforge_sim_switch:
  .cfi_startproc
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .cfi_endproc
.size opforge_sim_switch, .-opforge_sim_switch
)");
extern "C" void opforge_sim_switch(void** save, void* enter);

namespace opforge::sim {

namespace {

// Kernels use little stack, but unoptimised and sanitised builds of them use much more. Pages are
// only paid for when touched.
constexpr size_t kStack = 512 << 10;  // CUDA's limit, too

std::mutex pool_lock;
std::vector<char*> pool;  // mappings
constexpr size_t kBytes = Stacks::kCount * kStack;

}  // namespace

Stacks::Stacks() {
  {
    const std::lock_guard hold(pool_lock);
    if (!pool.empty()) {
      base_ = pool.back();
      pool.pop_back();
      return;
    }
  }
  void* mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<char*>(mapped);
  for (size_t i = 0; i < kCount; ++i) {
    if (mprotect(base_ + i * kStack, Stack::kGuard, PROT_NONE) != 0) throw std::bad_alloc();
  }
}

Stacks::~Stacks() {
  // Threads that were left where they were have not cleaned up.
  if (__asan_unpoison_memory_region != nullptr) __asan_unpoison_memory_region(base_, kBytes);
  const std::lock_guard hold(pool_lock);
  pool.push_back(base_);
}

Stack Stacks::operator[](size_t i) const {
  char* start = base_ + i * kStack;
  return {start + Stack::kGuard, start + kStack};
}

void prepare(Context& context, const Stack& stack, void (*entry)()) {
  auto** top = reinterpret_cast<void**>(stack.high);
  *--top = nullptr;  // where entry would return to; also aligns the stack as a call would
  *--top = reinterpret_cast<void*>(entry);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  context.stack_pointer = top;
}

void switch_to(Context& from, Context& to, const Stack& stack, bool done) {
  void* fake = nullptr;
  if (__sanitizer_start_switch_fiber != nullptr) {
    __sanitizer_start_switch_fiber(done ? nullptr : &fake, stack.low,
                                   size_t(stack.high - stack.low));
  }
  opforge_sim_switch(&from.stack_pointer, to.stack_pointer);
  if (__sanitizer_finish_switch_fiber != nullptr) {
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
  }
}

void arrived() {
  if (__sanitizer_finish_switch_fiber != nullptr) {
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
  }
}

}  // namespace opforge::sim
