// SPDX-License-Identifier: Apache-2.0
// Tiles of matrices, copied to and from swizzled boxes in shared memory. They land as late as other
// bulk copies do.
#include <opforge_sim/tiles.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "copies.h"
#include "placement.h"
#include "report.h"
#include "shadow.h"
#include "swizzle.h"
#include "traffic.h"

namespace opforge::sim {

namespace {

constexpr size_t kAlignment = 1024;  // of boxes

// What a box has of a matrix.
struct Box {
  const TensorMap map;
  const int col, row, batch;

  size_t bytes() const { return size_t(map.box_rows) * kRowBytes; }

  // Calls f(row of the box, byte in it, address in the matrix, bytes) for each row that is there.
  template <class F>
  void each_row(const F& f) const {
    const int64_t across = int64_t(kRowBytes) / map.element_bytes;
    const int64_t first = std::max<int64_t>(0, -int64_t(col));
    const int64_t count = std::min<int64_t>(across, map.cols - col) - first;
    if (count <= 0 || batch < 0 || batch >= map.batches) return;
    for (int64_t r = std::max<int64_t>(0, -int64_t(row)); r < map.box_rows && row + r < map.rows;
         ++r) {
      f(r, size_t(first * map.element_bytes),
        map.data + batch * map.batch_bytes + (row + r) * map.row_bytes +
            (col + first) * map.element_bytes,
        size_t(count * map.element_bytes));
    }
  }

  void load(unsigned char* to) const {
    std::memset(to, 0, bytes());
    each_row([&](int64_t r, size_t at, const unsigned char* from, size_t count) {
      std::array<unsigned char, kRowBytes> line{};
      std::memcpy(line.data() + at, from, count);
      if (map.to_tf32) round_to_tf32(line);
      for (size_t i = 0; i < kRowBytes; i += kChunk)
        std::memcpy(swizzled(to + size_t(r) * kRowBytes + i), line.data() + i, kChunk);
    });
  }

  void store(const unsigned char* from) const {
    each_row([&](int64_t r, size_t at, const unsigned char* to, size_t count) {
      std::array<unsigned char, kRowBytes> line;
      for (size_t i = 0; i < kRowBytes; i += kChunk)
        std::memcpy(line.data() + i, swizzled(from + size_t(r) * kRowBytes + i), kChunk);
      std::memcpy(const_cast<unsigned char*>(to), line.data() + at, count);
    });
  }

  // To the nearest number with 10 bits after the point, ties to even.
  static void round_to_tf32(std::array<unsigned char, kRowBytes>& line) {
    for (size_t i = 0; i < kRowBytes; i += 4) {
      uint32_t bits;
      std::memcpy(&bits, &line[i], 4);
      const bool nan = (bits & 0x7fffffff) > 0x7f800000;
      bits = nan ? 0x7fffffff : (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
      std::memcpy(&line[i], &bits, 4);
    }
  }
};

// A GPU stops with an illegal instruction at a box that begins elsewhere.
void check_place(const Box& box, bool stores, const void* pc) {
  const char* const what = stores ? " stores" : " copies";
  std::string why;
  if (int64_t(box.col) * box.map.element_bytes % 16 != 0) {
    why = "; columns begin at multiples of 16 bytes";
  } else if (stores && (box.col < 0 || box.row < 0)) {
    why = "; what is stored begins in the matrix";
  }
  if (why.empty()) return;
  report("tile-place",
         name_of(*worker->running) + what + " a box at column " + std::to_string(box.col) +
             ", row " + std::to_string(box.row) + why,
         pc);
  abandon();
}

// What of global memory it reads or writes, at once for all detectors.
void access_matrix(const Box& box, const shadow::Engine* writes, const void* pc) {
  bool first = true;
  box.each_row([&](int64_t, size_t, const unsigned char* address, size_t count) {
    check_global_of_copy(address, count, writes != nullptr, pc);
    const auto at = reinterpret_cast<uintptr_t>(address);
    if (settings.traffic) traffic::copy(at, count, writes != nullptr, first);
    first = false;
    const auto kind = writes ? shadow::Kind::copy_to : shadow::Kind::read;
    if (settings.race) shadow::access(at, count, kind, pc, writes);
  });
}

}  // namespace

TensorMap tensor_map(const void* data, int element_bytes, int64_t rows, int64_t cols,
                     int64_t row_stride, int64_t batches, int64_t batch_stride, int box_rows,
                     bool to_tf32) {
  const int64_t row_bytes = row_stride * element_bytes, batch_bytes = batch_stride * element_bytes;
  const auto refuse = [&](const std::string& why) {
    report("tensor-map",
           "tensor_map() of " + std::to_string(batches) + " x " + std::to_string(rows) + " x " +
               std::to_string(cols) + " elements of " + std::to_string(element_bytes) +
               " bytes: " + why,
           outside_launch(__builtin_return_address(0)));
    throw_reports();
  };
  const auto check_stride = [&](const char* of, int64_t bytes) {
    if (bytes % 16 != 0 || bytes < 0 || bytes >= int64_t(1) << 40) {
      refuse(std::string("from a ") + of + " to the next there are " + std::to_string(bytes) +
             " bytes, which is no multiple of 16 below 2^40");
    }
  };
  const auto past = reinterpret_cast<uintptr_t>(data) % 16;
  if (past != 0) {
    refuse("its address is " + std::to_string(past) + " bytes past a multiple of 16");
  }
  if (rows > 1) check_stride("row", row_bytes);
  if (batches > 1) check_stride("matrix", batch_bytes);
  for (const int64_t extent : {rows, cols, batches}) {
    if (extent < 1 || extent >= int64_t(1) << 31) refuse("extents are from 1 to 2^31 - 1");
  }
  if (box_rows < 1 || box_rows > 256) {
    refuse("a box of " + std::to_string(box_rows) + " rows; it has 1 to 256");
  }
  if (to_tf32 && element_bytes != 4) refuse("only floats can be rounded to TF32");
  return {static_cast<const unsigned char*>(data),
          rows,
          cols,
          batches,
          row_bytes,
          batch_bytes,
          element_bytes,
          box_rows,
          to_tf32};
}

void tile_copy(void* to, const TensorMap& map, int col, int row, int batch, void* barrier,
               unsigned blocks) {
  Worker& w = *worker;
  const void* pc = __builtin_return_address(0);
  const Box box{map, col, row, batch};
  check_place(box, false, pc);
  check_shared_of_copy(to, box.bytes(), kAlignment, pc);
  access_matrix(box, nullptr, pc);
  if (blocks == 0) blocks = 1u << w.running->block->rank;
  for (int rank = 0; rank < 32; ++rank) {
    if ((blocks >> rank & 1) == 0) continue;
    auto* const there = static_cast<unsigned char*>(peer_address(to, rank, pc));
    void* const told = peer_address(barrier, rank, pc);
    check_started(rank, " asks for a bulk copy to", pc);
    Barrier& b = barrier_of_copy(told, " asks for a bulk copy", pc);
    if (settings.race) {
      const shadow::Engine engine{b.engine, b.phases};
      shadow::access(reinterpret_cast<uintptr_t>(there), box.bytes(), shadow::Kind::copy_to, pc,
                     &engine);
    }
    std::memset(there, 0xff, box.bytes());
    land_later(b, told, box.bytes(), [=] { box.load(there); }, pc);
  }
}

void tile_store(const TensorMap& map, int col, int row, int batch, const void* from) {
  const void* pc = __builtin_return_address(0);
  const Box box{map, col, row, batch};
  check_place(box, true, pc);
  check_shared_of_copy(from, box.bytes(), kAlignment, pc);
  Stores& stores = stores_of(*worker->running);
  const shadow::Engine reads{stores.engine, stores.committed};
  const shadow::Engine writes{stores.engine, shadow::Engine::kNever};
  if (settings.race) {
    shadow::access(reinterpret_cast<uintptr_t>(from), box.bytes(), shadow::Kind::copy_from, pc,
                   &reads);
  }
  access_matrix(box, &writes, pc);
  store_later(stores, box.bytes(), [=] { box.store(static_cast<const unsigned char*>(from)); }, pc);
}

}  // namespace opforge::sim
