// SPDX-License-Identifier: Apache-2.0
// Where code of check builds comes to at the start of every basic block and before every
// comparison (-fsanitize-coverage=trace-pc,trace-cmp). Notes which blocks ran and what was
// compared, while it is switched on. Threads may write at the same time: a note lost to a race is
// made again the next time, and all of them write the same.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// One comparison in the code, and the first different operands it had.
struct Compare {
  uint64_t pc;
  uint32_t kind;      // as below
  uint32_t outcomes;  // bits: 1 less, 2 equal, 4 greater
  uint32_t count;     // of pairs
  uint32_t unused;
  uint64_t a[6], b[6];
};
enum Kind : uint32_t { integers, constant_first, floats, cases };
constexpr uint32_t kPairs = 6;

// The machine code of one library.
struct Region {
  uintptr_t begin, size;
  uint8_t* ran;     // by the return address of the call that reports a block
  uint32_t* where;  // index + 1 into compares, by return address
};

constexpr int kRegions = 16;
constexpr uint32_t kCompares = 1 << 16;
constexpr uint32_t kEarly = 1 << 14;

Region regions[kRegions];
std::atomic<int> region_count{0};
Compare compares[kCompares];
std::atomic<uint32_t> compare_count{0};
uint64_t early[kEarly];  // blocks that ran while their library was being loaded
std::atomic<uint32_t> early_count{0};
std::atomic<bool> on{false}, loading{false};

inline const Region* region_of(uintptr_t pc) {
  const int count = region_count.load(std::memory_order_relaxed);
  for (int i = 0; i < count; ++i) {
    if (pc - regions[i].begin < regions[i].size) return &regions[i];
  }
  return nullptr;
}

Compare* compare_at(uintptr_t pc, Kind kind) {
  const Region* r = region_of(pc);
  if (r == nullptr) return nullptr;
  uint32_t& slot = r->where[pc - r->begin];
  if (slot == 0) {
    const uint32_t next = compare_count.fetch_add(1, std::memory_order_relaxed);
    if (next >= kCompares) {
      compare_count.store(kCompares, std::memory_order_relaxed);
      return nullptr;
    }
    compares[next] = Compare{pc, kind, 0, 0, 0, {}, {}};
    slot = next + 1;
  }
  return &compares[slot - 1];
}

void note(Compare* c, uint32_t outcome, uint64_t a, uint64_t b) {
  if (c == nullptr) return;
  if ((c->outcomes & outcome) != outcome) c->outcomes |= outcome;
  const uint32_t count = c->count;
  if (count >= kPairs) return;
  for (uint32_t i = 0; i < count; ++i) {
    if (c->a[i] == a && c->b[i] == b) return;
  }
  c->a[count] = a;
  c->b[count] = b;
  c->count = count + 1;
}

template <class T>
uint32_t outcome_of(T a, T b) {
  return a < b ? 1 : a == b ? 2 : a > b ? 4 : 0;  // 0 for NaN
}

template <class T>
uint64_t bits_of(T value) {
  if constexpr (sizeof(T) == 8) {
    uint64_t bits;
    std::memcpy(&bits, &value, 8);
    return bits;
  } else {
    return uint64_t(int64_t(value));
  }
}

template <class T>
inline void compared(T a, T b, Kind kind, void* pc) {
  if (!on.load(std::memory_order_relaxed)) return;
  note(compare_at(reinterpret_cast<uintptr_t>(pc), kind), outcome_of(a, b), bits_of(a), bits_of(b));
}

}  // namespace

#define PC __builtin_return_address(0)

EXPORT void __sanitizer_cov_trace_pc() {
  const bool now_loading = loading.load(std::memory_order_relaxed);
  if (!on.load(std::memory_order_relaxed) && !now_loading) return;
  const auto pc = reinterpret_cast<uintptr_t>(PC);
  if (const Region* r = region_of(pc)) {
    // Written once: threads that write to one cache line wait for each other.
    if (r->ran[pc - r->begin] == 0) r->ran[pc - r->begin] = 1;
  } else if (now_loading) {
    const uint32_t next = early_count.fetch_add(1, std::memory_order_relaxed);
    if (next < kEarly) early[next] = pc;
  }
}

EXPORT void __sanitizer_cov_trace_cmp1(int8_t a, int8_t b) { compared(a, b, integers, PC); }
EXPORT void __sanitizer_cov_trace_cmp2(int16_t a, int16_t b) { compared(a, b, integers, PC); }
EXPORT void __sanitizer_cov_trace_cmp4(int32_t a, int32_t b) { compared(a, b, integers, PC); }
EXPORT void __sanitizer_cov_trace_cmp8(int64_t a, int64_t b) { compared(a, b, integers, PC); }
EXPORT void __sanitizer_cov_trace_const_cmp1(int8_t a, int8_t b) {
  compared(a, b, constant_first, PC);
}
EXPORT void __sanitizer_cov_trace_const_cmp2(int16_t a, int16_t b) {
  compared(a, b, constant_first, PC);
}
EXPORT void __sanitizer_cov_trace_const_cmp4(int32_t a, int32_t b) {
  compared(a, b, constant_first, PC);
}
EXPORT void __sanitizer_cov_trace_const_cmp8(int64_t a, int64_t b) {
  compared(a, b, constant_first, PC);
}
EXPORT void __sanitizer_cov_trace_cmpf(float a, float b) {
  compared(double(a), double(b), floats, PC);
}
EXPORT void __sanitizer_cov_trace_cmpd(double a, double b) { compared(a, b, floats, PC); }

// list: how many cases, their bits, the cases.
EXPORT void __sanitizer_cov_trace_switch(uint64_t value, uint64_t* list) {
  if (!on.load(std::memory_order_relaxed)) return;
  Compare* c = compare_at(reinterpret_cast<uintptr_t>(PC), cases);
  for (uint64_t i = 0; i < list[0] && i < kPairs; ++i) note(c, 0, list[2 + i], value);
}

// --- for Python
// -----------------------------------------------------------------------------------

EXPORT int opforge_cover_watch(uint64_t begin, uint64_t size) {
  const int next = region_count.load();
  if (next == kRegions) return -1;
  auto* ran = static_cast<uint8_t*>(std::calloc(size, 1));
  auto* where = static_cast<uint32_t*>(std::calloc(size, sizeof(uint32_t)));
  if (ran == nullptr || where == nullptr) return -1;
  regions[next] = Region{begin, size, ran, where};
  region_count.store(next + 1);
  return next;
}

EXPORT void opforge_cover_switch(bool recording) { on.store(recording); }
EXPORT void opforge_cover_loading(bool now) { loading.store(now); }
EXPORT const uint8_t* opforge_cover_ran(int region) { return regions[region].ran; }
EXPORT const Compare* opforge_cover_compares() { return compares; }
EXPORT uint32_t opforge_cover_compare_count() { return compare_count.load(); }
EXPORT const uint64_t* opforge_cover_early() { return early; }
EXPORT uint32_t opforge_cover_early_count() {
  const uint32_t count = early_count.load();
  return count < kEarly ? count : kEarly;
}

EXPORT void opforge_cover_clear() {
  const uint32_t count = compare_count.load();
  for (uint32_t i = 0; i < count; ++i) {
    if (const Region* r = region_of(compares[i].pc)) r->where[compares[i].pc - r->begin] = 0;
  }
  compare_count.store(0);
  for (int i = 0; i < region_count.load(); ++i) std::memset(regions[i].ran, 0, regions[i].size);
}
