// SPDX-License-Identifier: Apache-2.0
// Copies of 16 bytes by single threads. They land when their thread waits for them; what is read
// before is NaN.
#include <algorithm>
#include <cstring>

#include "copies.h"
#include "order.h"
#include "shadow.h"
#include "traffic.h"

namespace opforge::sim {

namespace {

constexpr uint32_t kPiece = 16;

Pieces& pieces_of(const Fiber& f) {
  Pieces& pieces = async_of(*worker).pieces[&f];
  if (pieces.engine == 0) pieces.engine = new_engine();
  return pieces;
}

}  // namespace

void piece_copy(void* to, const void* from, uint32_t bytes) {
  const void* pc = __builtin_return_address(0);
  const auto source = reinterpret_cast<uintptr_t>(from), target = reinterpret_cast<uintptr_t>(to);
  check_shared_of_copy(to, kPiece, kPiece, pc);
  if (bytes > 0) {
    check_aligned(from, kPiece, "global memory", pc);
    check_global_of_copy(from, bytes, false, pc);
  }
  Pieces& pieces = pieces_of(*worker->running);
  if (settings.traffic) {
    if (bytes > 0) traffic::access(source, bytes, false, pc);
    traffic::access(target, kPiece, true, pc);
  }
  if (settings.race) {
    const shadow::Engine engine{pieces.engine, pieces.committed};
    if (bytes > 0) shadow::access(source, bytes, shadow::Kind::read, pc);
    shadow::access(target, kPiece, shadow::Kind::piece, pc, &engine);
  }
  std::memset(to, 0xff, kPiece);
  pieces.flying.push_back({to, from, bytes, pieces.committed});
}

void piece_commit() { ++pieces_of(*worker->running).committed; }

void piece_wait(int groups) {
  const Fiber& f = *worker->running;
  Pieces& pieces = pieces_of(f);
  const uint32_t over = pieces.committed - std::min(pieces.committed, uint32_t(groups));
  for (; !pieces.flying.empty() && pieces.flying.front().group < over; pieces.flying.pop_front()) {
    const Pieces::Piece& p = pieces.flying.front();
    std::memset(p.to, 0, kPiece);
    if (p.bytes > 0) std::memcpy(p.to, p.from, p.bytes);
  }
  shadow::Knowledge known;
  known.learn_copies(pieces.engine, over);
  shadow::acquire(f, known);
}

}  // namespace opforge::sim
