// SPDX-License-Identifier: Apache-2.0
#include "blocks.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace opforge::guard {

namespace {

constexpr size_t kPage = 4096;
// Inaccessible on either side. Address space costs nothing, and a kernel that is wrong by a row is
// further away than a page.
constexpr size_t kGuard = size_t(1) << 20;
// NaN in every floating point type; what fresh memory and the gaps are filled with.
constexpr int kPattern = 0xff;

struct Block {
  char *low, *high;    // the accessible pages
  char *data, *end;    // what was asked for
  char *first, *last;  // the tensor in it
  size_t element = 1;
  std::string name = {};
  bool read_only = false;
};

std::mutex lock;
std::map<uintptr_t, Block> blocks;  // by the end of their mapping
std::string found;

uintptr_t number(const void* p) { return reinterpret_cast<uintptr_t>(p); }
size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// The block whose mapping holds an address. The lock is held.
Block* block_at(const void* address) {
  const auto at = blocks.upper_bound(number(address));
  if (at == blocks.end() || number(address) < number(at->second.low) - kGuard) return nullptr;
  return &at->second;
}

std::string times(size_t n, const char* what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

// "x, which spans 33 elements of 4 bytes"
std::string described(const Block& b) {
  const auto bytes = size_t(b.last - b.first);
  if (b.name.empty()) return times(bytes, "byte") + " that the op allocated";
  return b.name + ", which spans " + times(bytes / b.element, "element") + " of " +
         times(b.element, "byte");
}

void verify(Block& b) {
  const auto changed = [](char c) { return c != char(kPattern); };
  const auto tell = [&](const char* from, const char* to, const std::string& where) {
    found += "the op wrote " + times(size_t(to - from), "byte") + " " + where + " " + described(b) +
             "\n";
    std::memset(const_cast<char*>(from), kPattern, size_t(to - from));  // said once
  };
  // From the block outwards on both sides: the furthest byte tells how much was written.
  if (char* c = std::find_if(b.low, b.data, changed); c != b.data) {
    tell(c, b.data, "before the start of");
  }
  char* to = b.high;
  while (to != b.end && !changed(to[-1])) --to;
  if (to != b.end) tell(b.end, to, "past the end of");
}

}  // namespace

void* allocate(size_t bytes, Side side) {
  const size_t room = round_up(std::max<size_t>(bytes, 1), kPage);
  const size_t mapped = room + 2 * kGuard;
  void* const mapping =
      mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  char* const low = static_cast<char*>(mapping) + kGuard;
  if (mprotect(low, room, PROT_READ | PROT_WRITE) != 0) {
    munmap(mapping, mapped);
    return nullptr;
  }
  std::memset(low, kPattern, room);
  char* const data = side == Side::end ? low + room - round_up(bytes, kAlignment) : low;
  const Block block{low, low + room, data, data + bytes, data, data + bytes};
  const std::lock_guard hold(lock);
  blocks.emplace(number(low) + room + kGuard, block);
  return data;
}

bool release(void* data) {
  const std::lock_guard hold(lock);
  const auto at = blocks.upper_bound(number(data));
  if (at == blocks.end() || at->second.data != data) return false;
  Block& b = at->second;
  if (!b.read_only) verify(b);
  munmap(b.low - kGuard, size_t(b.high - b.low) + 2 * kGuard);
  blocks.erase(at);
  return true;
}

void name(const void* data, size_t bytes, size_t element, const char* name, bool read_only) {
  const std::lock_guard hold(lock);
  Block* const b = block_at(data);
  if (b == nullptr || !b->name.empty()) return;
  b->first = static_cast<char*>(const_cast<void*>(data));
  b->last = b->first + bytes;
  b->element = element;
  b->name = name;
  verify(*b);
  if (read_only) b->read_only = mprotect(b->low, size_t(b->high - b->low), PROT_READ) == 0;
}

void verify() {
  const std::lock_guard hold(lock);
  for (auto& [_, block] : blocks) {
    if (!block.read_only) verify(block);
  }
}

std::string take() {
  const std::lock_guard hold(lock);
  return std::exchange(found, {});
}

Access describe(const void* address, bool writes) {
  const std::lock_guard hold(lock);
  const Block* const b = block_at(address);
  if (b == nullptr) return {nullptr, ""};
  const auto* const at = static_cast<const char*>(address);
  std::string text = writes ? "writes" : "reads";
  if (at >= b->first && at < b->last) {
    if (!b->read_only) return {nullptr, ""};  // accessible: not a fault of this kind
    text += " to " + b->name + " (element " + std::to_string(size_t(at - b->first) / b->element) +
            " of " + std::to_string(size_t(b->last - b->first) / b->element) + " in memory)";
    return {"read-only", text + ": what an op is given must stay as it is while it runs"};
  }
  const bool past = at >= b->last;
  const auto distance = size_t(past ? at - b->last : b->first - at);
  const char* const where = past ? " past the end of " : " before the start of ";
  if (!b->name.empty()) {
    const size_t elements = past ? distance / b->element + 1 : (distance - 1) / b->element + 1;
    text += " " + times(elements, "element") + where;
  } else if (past && distance == 0) {
    text += std::string(" right") + where;
  } else {
    text += " " + times(distance, "byte") + where;
  }
  return {"out-of-bounds", text + described(*b)};
}

}  // namespace opforge::guard
