// SPDX-License-Identifier: Apache-2.0
// What device code asks for and does on its own: shared memory, assertions, checked indices.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "report.h"
#include "shadow.h"
#include "state.h"

namespace opforge::sim {

namespace {

const char kDynamic = 0;  // the key of dynamic shared memory

// Addresses are the same in all blocks as far as tiles and their swizzle go (1024 bytes). Dynamic
// shared memory is aligned to no more than it promises: a kernel that needs more aligns it itself.
constexpr size_t kAlignment = 1024;

}  // namespace

SharedPart& shared_of(Block& b, const void* key, size_t bytes, size_t alignment, const void* pc) {
  SharedPart* part = nullptr;
  size_t fixed = key == &kDynamic ? 0 : bytes;  // of static shared memory
  for (SharedPart& p : b.shared) {
    if (p.key == key) part = &p;
    if (p.key != key && p.key != &kDynamic && p.taken) fixed += p.bytes;
  }
  if (part == nullptr) {
    void* allocated = nullptr;
    const size_t before = key == &kDynamic && alignment < kAlignment ? alignment : 0;
    // Nothing behind it, so that AddressSanitizer sees its end.
    if (posix_memalign(&allocated, std::max(alignment, kAlignment), before + bytes) != 0)
      std::abort();
    char* const memory = static_cast<char*>(allocated) + before;
    part = &b.shared.emplace_back(SharedPart{key, bytes, memory, false, allocated});
  }
  if (!part->taken) {
    const size_t all = fixed + worker->launch->shared_bytes;
    const bool too_much = fixed > size_t(settings.shared_per_block);
    if (too_much || all > size_t(settings.most_shared_per_block)) {
      report("shared-memory",
             "the kernel asks for " + std::to_string(too_much ? fixed : all) +
                 " bytes of shared memory, " +
                 std::to_string(too_much ? settings.shared_per_block
                                         : settings.most_shared_per_block) +
                 " is the limit",
             pc);
    }
    part->taken = true;
    std::memset(part->memory, 0xff, bytes);  // NaN: a block finds nothing there
    shadow::fresh_shared(part->memory, bytes);
  }
  return *part;
}

void* shared_memory(const void* key, size_t bytes, size_t alignment) {
  return shared_of(*worker->running->block, key, bytes, alignment, __builtin_return_address(0))
      .memory;
}

void* dynamic_shared(size_t alignment) {
  return shared_of(*worker->running->block, &kDynamic, worker->launch->shared_bytes, alignment,
                   __builtin_return_address(0))
      .memory;
}

void await_previous() { worker->running->awaited = true; }
void release_next() {}

void assertion_failed(const char* expression, const Where& where) {
  if (!in_kernel) {
    std::fprintf(stderr, "%s:%u: assertion failed: %s\n", where.file_name(), unsigned(where.line()),
                 expression);
    std::abort();
  }
  report("assert", name_of(*worker->running) + " fails: " + expression,
         __builtin_return_address(0));
  abandon();
}

void trap(const Where&) {
  report("trap", name_of(*worker->running) + " calls __trap()", __builtin_return_address(0));
  abandon();
}

void check_time(const void* pc) {
  if (worker->late == nullptr) return;
  worker->late = pc;
  abandon();
}

void index_overflow(int64_t exact, const char* type) {
  if (!in_kernel) return;
  report("index-overflow",
         name_of(*worker->running) + " makes the index " + std::to_string(exact) +
             ", which does not fit an " + type,
         __builtin_return_address(0));
  abandon();  // what it would access now is anybody's guess
}

}  // namespace opforge::sim
