// SPDX-License-Identifier: Apache-2.0
// The shadow's storage: a cell per granule of memory, granules as coarse as the accesses allow.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace opforge::sim::shadow {

// One access, or several reads that nothing orders among each other.
struct Access {
  uint64_t pc : 48 = 0;
  uint64_t thread : 11 = 0;
  uint64_t many_warps : 1 = 0;  // of one block
  uint64_t many_blocks : 1 = 0;
  uint64_t one_cluster : 1 = 0;  // whose blocks these are
  uint64_t copy : 1 = 0;         // by an engine, for the thread
  uint64_t before : 1 = 0;       // one of them was of the kernel before, which this one overlaps
  uint32_t moment = 0;           // block, barrier epoch and cluster generation; 0: never
  // The warp's clock; of many blocks the latest epoch, or in one cluster the latest generation.
  // Of a copy its phase.
  uint32_t stamp = 0;
  uint32_t lanes = 0;  // of the warp; of a copy its engine
  // Of many warps another thread or a group, of many blocks another moment, of a copy whether it
  // was sent, is a product or a piece.
  uint32_t second = 0;
  static constexpr uint32_t kSent = 1, kProduct = 2, kPiece = 3;

  bool sent() const { return copy && second == kSent; }
  bool piece() const { return copy && second == kPiece; }
  bool multiplied() const { return copy && second == kProduct; }
  bool operator==(const Access&) const = default;
};

struct Cell {
  Access write, atomic, read;

  bool written() const { return write.moment != 0 || atomic.moment != 0; }
};

class Pages {
 public:
  static constexpr int kBits = 12;
  static constexpr uintptr_t kSize = uintptr_t(1) << kBits;

  // Calls f(cell, address, bytes) for every granule of [address, address + bytes).
  template <class F>
  void visit(uintptr_t address, size_t bytes, const F& f) {
    const uintptr_t end = address + bytes;
    while (address < end) {
      Page& page = at(address);
      const uintptr_t stop = std::min(end, (address | (kSize - 1)) + 1);
      fit(page, std::countr_zero(address | (stop - address)));
      const uintptr_t step = uintptr_t(1) << page.shift;
      for (; address < stop; address += step) {
        f(page.cells[(address & (kSize - 1)) >> page.shift], address, step);
      }
    }
  }

  // Forgets what happened to [address, address + bytes).
  void forget(uintptr_t address, size_t bytes) {
    const uintptr_t end = address + bytes;
    while (address < end) {
      const uintptr_t stop = std::min(end, (address | (kSize - 1)) + 1);
      if (pages_.contains(address >> kBits)) {
        visit(address, stop - address, [](Cell& cell, uintptr_t, size_t) { cell = {}; });
      }
      address = stop;
    }
  }

  void clear() {
    pages_.clear();
    last_ = nullptr;
    bytes_ = 0;
  }
  size_t bytes() const { return bytes_; }

 private:
  struct Page {
    int shift = -1;  // log2 of the granule
    std::vector<Cell> cells;
  };

  Page& at(uintptr_t address) {
    const uintptr_t number = address >> kBits;
    if (last_ == nullptr || last_number_ != number) {
      last_ = &pages_[number];
      last_number_ = number;
    }
    return *last_;
  }

  // Makes the granules fine enough for an access with this many trailing zero bits.
  void fit(Page& page, int zeros) {
    const int wanted = std::min(zeros, 4);
    if (page.shift >= 0 && page.shift <= wanted) return;
    const int from = page.shift;
    std::vector<Cell> finer(kSize >> wanted);
    if (from >= 0) {
      for (size_t i = 0; i < finer.size(); ++i) finer[i] = page.cells[i >> (from - wanted)];
    }
    bytes_ += (finer.size() - page.cells.size()) * sizeof(Cell);
    page.cells = std::move(finer);
    page.shift = wanted;
  }

  std::unordered_map<uintptr_t, Page> pages_;
  Page* last_ = nullptr;
  uintptr_t last_number_ = 0;
  size_t bytes_ = 0;
};

extern Pages pages;

}  // namespace opforge::sim::shadow
