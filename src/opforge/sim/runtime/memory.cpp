// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "pages.h"
#include "report.h"

namespace opforge::sim {

namespace shadow {

namespace {

std::vector<Range> allocations;  // made by the op that runs
int depth = 0;                   // of ops calling ops

}  // namespace

const Range* allocation(uintptr_t address) {
  for (const Range& r : allocations) {
    if (address >= r.low && address < r.high) return &r;
  }
  return nullptr;
}

SharedAt shared_at(Worker& w, uintptr_t address) {
  for (Block& b : w.blocks) {
    for (const SharedPart& p : b.shared) {
      const auto low = reinterpret_cast<uintptr_t>(p.memory);
      if (p.taken && address >= low && address < low + p.bytes) return {&b, &p};
    }
  }
  return {};
}

bool is_poison(uintptr_t address, size_t bytes) {
  const auto* p = reinterpret_cast<const unsigned char*>(address);
  return std::all_of(p, p + bytes, [](unsigned char c) { return c == 0xff; });
}

std::string memory_at(Worker& w, uintptr_t address) {
  if (const auto [owner, p] = shared_at(w, address); p != nullptr) {
    return "shared memory (byte " + std::to_string(address - uintptr_t(p->memory)) + " of " +
           std::to_string(p->bytes) +
           (w.blocks.size() > 1 ? " in block " + name_of_block(*owner) : "") + ")";
  }
  if (const Range* r = allocation(address)) {
    return "global memory (byte " + std::to_string(address - r->low) + " of " +
           std::to_string(r->high - r->low) + " that the op allocated)";
  }
  return "global memory";
}

}  // namespace shadow

void allocated(void* address, size_t bytes) {
  std::memset(address, 0xff, bytes);  // NaN in every floating point type
  if (!settings.race) return;
  const auto low = reinterpret_cast<uintptr_t>(address);
  shadow::pages.forget(low, bytes);
  std::erase_if(shadow::allocations,
                [=](const shadow::Range& r) { return low < r.high && r.low < low + bytes; });
  shadow::allocations.push_back({low, low + bytes, true});
}

void written_by_host(const void* address, size_t) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (shadow::Range& r : shadow::allocations) {
    if (at >= r.low && at < r.high) r.fresh = false;
  }
}

void enter_op() {
  constexpr size_t kRoom = 256 << 20;
  if (shadow::depth++ == 0 && shadow::pages.bytes() > kRoom) shadow::pages.clear();
}

void returns(const void* address, size_t bytes, size_t element) {
  if (!settings.race || bytes == 0) return;
  const auto low = reinterpret_cast<uintptr_t>(address);
  const shadow::Range* r = shadow::allocation(low);
  if (r == nullptr || !r->fresh) return;
  size_t missing = 0, first = 0;
  shadow::pages.visit(low, bytes, [&](const shadow::Cell& cell, uintptr_t at, size_t size) {
    if (cell.written() || !shadow::is_poison(at, size)) return;
    if (missing == 0) first = (at - low) / element;
    missing += size;
  });
  if (missing > 0) {
    report("unwritten",
           std::to_string((missing + element - 1) / element) + " of " +
               std::to_string(bytes / element) +
               " elements of an output were never written, the first of them element " +
               std::to_string(first),
           nullptr);
  }
}

void finish_op() { throw_reports(); }

void leave_op() {
  if (--shadow::depth > 0) return;
  shadow::allocations.clear();
  drop_reports();
}

}  // namespace opforge::sim
