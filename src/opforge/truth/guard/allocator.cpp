// SPDX-License-Identifier: Apache-2.0
// torch's allocator for the CPU, while it is asked to: a block of its own for every tensor.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstring>

#include "blocks.h"
#include "fault.h"

namespace opforge::guard {

namespace {

// Larger ones take long to fill; torch's own allocator makes them.
constexpr size_t kMost = size_t(256) << 20;

std::atomic<Side> side{Side::none};
c10::Allocator* usual = nullptr;

void free_block(void* data) { release(data); }
void free_any(void* data) {
  if (!release(data)) usual->raw_deallocate(data);
}

class Guarded final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const Side wanted = side;
    if (wanted == Side::none || bytes == 0 || bytes > kMost) return usual->allocate(bytes);
    void* const data = guard::allocate(bytes, wanted);
    if (data == nullptr) return usual->allocate(bytes);
    return {data, data, &free_block, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_any; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

}  // namespace

}  // namespace opforge::guard

#define OPFORGE_EXPORT extern "C" __attribute__((visibility("default")))

using namespace opforge;

// New tensors lie at inaccessible pages from now on, as guard::Side says.
OPFORGE_EXPORT void opforge_guard_set(int wanted) {
  if (guard::usual == nullptr) {
    static guard::Guarded allocator;  // storages remember it, so that it is never taken out again
    guard::usual = c10::GetCPUAllocator();
    c10::SetCPUAllocator(&allocator);
    guard::handle_faults();
  }
  guard::side = guard::Side(wanted);
}

OPFORGE_EXPORT void opforge_guard_name(const void* data, size_t bytes, size_t element,
                                       const char* name, bool read_only) {
  guard::name(data, bytes, element, name, read_only);
}

// What was written around blocks since the last call, a line each; copied as far as there is room.
OPFORGE_EXPORT void opforge_guard_take(char* text, size_t size) {
  guard::verify();
  const std::string all = guard::take();
  text[all.copy(text, size - 1)] = 0;
}

// For the simulator: the kind of a fault at this address, and what it is, in words.
OPFORGE_EXPORT const char* opforge_guard_describe(const void* address, bool writes, char* text,
                                                  size_t size) {
  const guard::Access access = guard::describe(address, writes);
  text[access.text.copy(text, size - 1)] = 0;
  return access.kind;
}
