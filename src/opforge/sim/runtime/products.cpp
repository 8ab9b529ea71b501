// SPDX-License-Identifier: Apache-2.0
#include "products.h"

#include <algorithm>
#include <cstring>

#include "async.h"
#include "memory.h"
#include "order.h"
#include "report.h"
#include "swizzle.h"

namespace opforge::sim {

namespace {

constexpr int kRows = 64, kMultiplyBytes = 32, kMostColumns = 256;

[[noreturn]] void fail(const char* kind, const std::string& text, const void* pc) {
  report(kind, name_of(*worker->running) + text, pc);
  abandon();
}

WarpGroup& group_of(const Fiber& f) {
  WarpGroup& group = async_of(*worker).groups[{f.block, f.number / kWarpGroup}];
  if (group.engine == 0) group.engine = new_engine();
  return group;
}

WarpGroup::Member& member_of(WarpGroup& group, const Fiber& f) {
  return group.members[size_t(f.number % kWarpGroup)];
}

int inner_count(const Product& p) { return kMultiplyBytes / p.element_bytes; }

// Calls f(address, bytes) for each piece of shared memory that an operand has.
template <class F>
void each_piece(const Product& p, const TileOperand& x, int outer, const F& f) {
  if (x.outer_major) {
    const size_t bytes = size_t(inner_count(p)) * kRowBytes;
    const int boxes = outer * p.element_bytes / int(kRowBytes);
    for (int i = 0; i < boxes; ++i) f(x.box + i * x.box_bytes + size_t(x.step) * bytes, bytes);
  } else {
    for (int i = 0; i < outer; ++i) {
      const auto* const from = swizzled(x.box + size_t(i) * kRowBytes + x.step * kMultiplyBytes);
      f(from - reinterpret_cast<uintptr_t>(from) % kMultiplyBytes, size_t(kMultiplyBytes));
    }
  }
}

template <class F>
void each_piece(const Product& p, const F& f) {
  each_piece(p, p.a, kRows, f);
  each_piece(p, p.b, p.columns, f);
}

// Values of an operand, those of an inner index beside each other.
void read(const Product& p, const TileOperand& x, decltype(Product::widen_a) widen, int outer,
          float* values) {
  unsigned char line[kRowBytes];
  const auto copy_line = [&](const unsigned char* from, size_t bytes) {
    for (size_t i = 0; i < bytes; i += kChunk) std::memcpy(line + i, swizzled(from + i), kChunk);
  };
  const int inner = inner_count(p), across = int(kRowBytes) / p.element_bytes;
  for (int i = 0; !x.outer_major && i < outer; ++i) {
    float wide[kMultiplyBytes];
    copy_line(x.box + size_t(i) * kRowBytes + x.step * kMultiplyBytes, kMultiplyBytes);
    widen(line, wide, inner);
    for (int k = 0; k < inner; ++k) values[k * outer + i] = wide[k];
  }
  for (int i = 0; x.outer_major && i < outer; i += across) {
    for (int k = 0; k < inner; ++k) {
      copy_line(x.box + i / across * x.box_bytes + size_t(x.step * inner + k) * kRowBytes,
                kRowBytes);
      widen(line, values + k * outer + i, across);
    }
  }
}

// Of two TF32 or shorter numbers the product is exact, so that each sum is rounded once.
void multiply(const Product& p, float* values) {
  constexpr int kBlock = 64;  // columns: a constant, for vectors
  float a[kMultiplyBytes * kRows], b[kMultiplyBytes * kMostColumns];
  read(p, p.a, p.widen_a, kRows, a);
  read(p, p.b, p.widen_b, p.columns, b);
  for (int row = 0; row < kRows; ++row) {
    for (int col = 0; col < p.columns; col += kBlock) {
      float* const to = values + row * p.columns + col;
      float sums[kBlock] = {};
      if (p.add) std::memcpy(sums, to, sizeof sums);
      for (int k = 0; k < inner_count(p); ++k) {
        const float x = a[k * kRows + row];
        const float* const y = b + k * p.columns + col;
        for (int i = 0; i < kBlock; ++i) sums[i] += x * y[i];
      }
      std::memcpy(to, sums, sizeof sums);
    }
  }
}

// Calls f(a thread's value, where the matrix has it).
template <class F>
void each_value(Sums& sums, int thread, const F& f) {
  const int row = thread / kWarp * 16 + thread % kWarp / 4, col = thread % 4 * 2;
  float* const mine = sums.at[size_t(thread)];
  for (int i = 0; i < sums.columns / 2; ++i) {
    const int r = row + i / 2 % 2 * 8, c = col + i / 4 * 8 + i % 2;
    f(mine[i], sums.values[size_t(r * sums.columns + c)]);
  }
}

void check_operand(const Product& p, const TileOperand& x, int outer, const char* name,
                   const void* pc) {
  const std::string who = std::string(" multiplies by operand ") + name;
  const auto past = reinterpret_cast<uintptr_t>(x.box) % 1024;
  if (past != 0) {
    fail("misaligned",
         who + ", whose box is " + std::to_string(past) + " bytes past a multiple of 1024", pc);
  }
  each_piece(p, x, outer, [&](const unsigned char* from, size_t bytes) {
    const auto at = reinterpret_cast<uintptr_t>(from);
    const auto [owner, part] = shadow::shared_at(*worker, at);
    if (owner == worker->running->block &&
        at + bytes <= reinterpret_cast<uintptr_t>(part->memory) + part->bytes)
      return;
    const bool ends = shadow::shared_at(*worker, reinterpret_cast<uintptr_t>(x.box)).owner ==
                      worker->running->block;
    fail(ends ? "out-of-bounds" : "bad-address",
         who + (ends ? ", which is larger than what there is from its box in " +
                           shadow::memory_at(*worker, reinterpret_cast<uintptr_t>(x.box))
                     : ", which is not in the shared memory of its block"),
         pc);
  });
}

// The first thread asks for a product.
AskedProduct make(const Fiber& f, WarpGroup& group, const WarpGroup::Member& mine, float* sums,
                  const Product& p, const void* pc) {
  check_operand(p, p.a, kRows, "a", pc);
  check_operand(p, p.b, p.columns, "b", pc);
  AskedProduct made{p, mine.committed, nullptr, &f, 0, {}};
  const auto thread = size_t(f.number % kWarpGroup);
  for (const auto& known : mine.sums) {
    if (known->at[thread] == sums && known->columns == p.columns) made.sums = known;
  }
  if (made.sums == nullptr) {
    made.sums = std::make_shared<Sums>();
    made.sums->columns = p.columns;
    made.sums->values.resize(size_t(kRows * p.columns));
  }
  ++made.sums->under_way;
  if (!settings.race) return made;
  const shadow::Engine engine{group.engine, made.group};
  each_piece(p, [&](const unsigned char* from, size_t bytes) {
    const auto at = reinterpret_cast<uintptr_t>(from);
    shadow::access(at, bytes, shadow::Kind::multiply, pc, &engine);
    shadow::note_writes(at, bytes, made.written);
  });
  return made;
}

bool is_whole(const AskedProduct& p) { return p.came == kWarpGroup; }

// All products of the groups before this one, if all threads have asked for them.
bool finish(WarpGroup& group, uint32_t over) {
  while (!group.asked.empty() && group.asked.front().group < over) {
    AskedProduct& next = group.asked.front();
    if (!is_whole(next)) return false;
    multiply(next.product, next.sums->values.data());
    --next.sums->under_way;
    group.asked.pop_front();
    ++group.done;
  }
  return true;
}

}  // namespace

void warpgroup_arrive() {
  const Fiber& f = *worker->running;
  member_of(group_of(f), f).arrived = true;
}

void warpgroup_multiply(float* sums, const Product& p) {
  const Fiber& f = *worker->running;
  const void* pc = __builtin_return_address(0);
  check_time(pc);
  const int first = f.number / kWarpGroup * kWarpGroup, thread = f.number - first;
  if (worker->launch->threads - first < kWarpGroup) {
    fail("warp-group",
         " asks for a product of 128 threads, but its warp group has only " +
             std::to_string(worker->launch->threads - first),
         pc);
  }
  WarpGroup& group = group_of(f);
  WarpGroup::Member& mine = member_of(group, f);
  if (!mine.arrived) {
    fail("warp-group", " asks for a product without warpgroup_arrive() before it", pc);
  }
  const size_t which = mine.asked++ - group.done;
  const bool is_first = which == group.asked.size();
  if (is_first) group.asked.push_back(make(f, group, mine, sums, p, pc));
  AskedProduct& asked = group.asked[which];
  float*& at = asked.sums->at[size_t(thread)];
  if (asked.product != p || asked.group != mine.committed || (at != nullptr && at != sums)) {
    fail("warp-group",
         " asks for another product than " + name_of(*asked.first) +
             ", which is of the same warp group",
         pc);
  }
  if (!is_first) shadow::check_writes(asked.written, shadow::Kind::multiply, pc);
  if (at == nullptr) {
    at = sums;
    mine.sums.push_back(asked.sums);
    if (p.add) each_value(*asked.sums, thread, [](float own, float& value) { value = own; });
    std::memset(sums, 0xff, size_t(p.columns / 2) * sizeof *sums);
  }
  mine.last = pc;
  mine.last_group = mine.committed;
  ++asked.came;
  if (!is_whole(asked)) return;
  for (int i = 0; i < kWarpGroup; ++i) {
    Fiber& other = f.block->fibers[size_t(first + i)];
    if (other.state == State::at_products) other.state = State::ready;
  }
}

void warpgroup_commit() {
  const Fiber& f = *worker->running;
  ++member_of(group_of(f), f).committed;
}

void warpgroup_wait(int groups) {
  Fiber& f = *worker->running;
  WarpGroup& group = group_of(f);
  WarpGroup::Member& mine = member_of(group, f);
  const uint32_t over = mine.committed - std::min(mine.committed, uint32_t(groups));
  while (!finish(group, over)) {
    f.site.pc = __builtin_return_address(0);
    f.awaits = reinterpret_cast<uintptr_t>(&group);
    f.state = State::at_products;
    suspend();
  }
  std::erase_if(mine.sums, [&](const std::shared_ptr<Sums>& sums) {
    if (sums->under_way > 0) return false;
    each_value(*sums, f.number % kWarpGroup, [](float& own, float value) { own = value; });
    return true;
  });
  mine.awaited = std::max(mine.awaited, over);
  shadow::Knowledge known;
  known.learn_copies(group.engine, over);
  shadow::acquire(f, known);
}

void check_products(Worker& w, const Fiber& exits) {
  const auto found = w.async->groups.find({exits.block, exits.number / kWarpGroup});
  if (found == w.async->groups.end()) return;
  const WarpGroup::Member& member = member_of(found->second, exits);
  if (member.last == nullptr || member.last_group < member.awaited) return;
  report("in-flight", name_of(exits) + " exits without warpgroup_wait() for its product",
         member.last);
}

std::string waits_for_products(const Fiber& f) {
  const AskedProduct& next = group_of(f).asked.front();
  return "in warpgroup_wait() for a product that " + std::to_string(next.came) +
         " of 128 threads have asked for, ";
}

}  // namespace opforge::sim
