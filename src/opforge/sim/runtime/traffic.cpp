// SPDX-License-Identifier: Apache-2.0
// The accesses of a warp's lanes at one place in the code, the n-th of each lane together, are one
// request, as if the lanes ran in step. Its cost is the number of 32-byte sectors it touches, or
// for shared memory the passes the 32 banks need.
#include "traffic.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <tuple>
#include <unordered_map>

#include "memory.h"
#include "report.h"

namespace opforge::sim::traffic {

namespace {

constexpr uintptr_t kSector = 32, kPage = 4096;

struct Lane {
  uintptr_t address;
  uint32_t number;  // how often this lane has been here
  uint8_t lane, bytes;
  bool write, shared;
};

struct Totals {
  uint64_t bytes[2] = {}, requests[2] = {}, sectors[2] = {}, fewest[2] = {};  // read, written
  uint64_t distinct[2] = {};                                                  // bytes of sectors
  uint64_t shared_requests = 0, passes = 0, fewest_passes = 0, barriers = 0;
};

// A place in the code as one warp comes by.
struct Place {
  std::vector<Lane> lanes;
  std::array<uint32_t, kWarp> visits{};
};

struct Touched {
  std::array<uint64_t, kPage / kSector / 64> sectors[2] = {};
};

Totals totals;
std::unordered_map<uint64_t, Place> places;  // of the cluster that runs
std::unordered_map<uintptr_t, Touched> touched;
std::string finished;  // lines for Python
std::mutex lock;

// Wide accesses are served a part of the warp at a time, 128 bytes each.
void count_shared(const Lane* first, const Lane* last) {
  ++totals.shared_requests;
  const int together = std::max(1, 128 / std::max<int>(4, first->bytes));
  std::vector<uintptr_t> words;
  for (const Lane* group = first; group < last;) {
    words.clear();
    const int part = group->lane / together;
    for (; group < last && group->lane / together == part; ++group) {
      for (uintptr_t word = group->address / 4; word * 4 < group->address + group->bytes; ++word) {
        words.push_back(word);
      }
    }
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    int in_bank[32] = {};
    int most = 0;
    for (const uintptr_t word : words) most = std::max(most, ++in_bank[word % 32]);
    totals.passes += uint64_t(most);
    totals.fewest_passes += (words.size() + 31) / 32;
  }
}

void count_request(const Lane* first, const Lane* last) {
  if (first->shared) {
    count_shared(first, last);
    return;
  }
  std::vector<uintptr_t> sectors;
  uint64_t bytes = 0;
  for (const Lane* l = first; l < last; ++l) {
    bytes += l->bytes;
    for (uintptr_t s = l->address / kSector; s * kSector < l->address + l->bytes; ++s) {
      sectors.push_back(s);
    }
  }
  std::sort(sectors.begin(), sectors.end());
  sectors.erase(std::unique(sectors.begin(), sectors.end()), sectors.end());
  totals.fewest[first->write] += std::min<uint64_t>(sectors.size(), (bytes + 31) / kSector);
  ++totals.requests[first->write];
  totals.bytes[first->write] += bytes;
  totals.sectors[first->write] += sectors.size();
}

void touch(uintptr_t address, size_t bytes, bool write) {
  for (uintptr_t s = address / kSector; s * kSector < address + bytes; ++s) {
    auto& sectors = touched[s * kSector / kPage].sectors[write];
    const uintptr_t within = s % (kPage / kSector);
    sectors[within / 64] |= uint64_t(1) << within % 64;
  }
}

void flush() {
  for (auto& [key, place] : places) {
    auto& lanes = place.lanes;
    std::sort(lanes.begin(), lanes.end(), [](const Lane& a, const Lane& b) {
      return std::tie(a.number, a.shared, a.lane) < std::tie(b.number, b.shared, b.lane);
    });
    for (size_t i = 0; i < lanes.size();) {
      size_t end = i;
      while (end < lanes.size() && lanes[end].number == lanes[i].number &&
             lanes[end].shared == lanes[i].shared) {
        ++end;
      }
      count_request(&lanes[i], lanes.data() + end);
      i = end;
    }
  }
  places.clear();
}

}  // namespace

void begin_launch(const Launch&) {
  if (!settings.traffic) return;
  totals = {};
  touched.clear();
}

void end_launch(const Launch& l) {
  if (!settings.traffic) return;
  for (const auto& [page, t] : touched) {
    for (int write : {0, 1}) {
      for (const uint64_t word : t.sectors[write]) {
        totals.distinct[write] += uint64_t(std::popcount(word)) * kSector;
      }
    }
  }
  std::string line = kernel_name(l.kernel.function);
  const auto add = [&line](auto... counts) { ((line += '\t' + std::to_string(counts)), ...); };
  add(l.blocks, l.threads);
  for (int w : {0, 1}) {
    add(totals.bytes[w], totals.distinct[w], totals.requests[w], totals.sectors[w],
        totals.fewest[w]);
  }
  add(totals.shared_requests, totals.passes, totals.fewest_passes, totals.barriers);
  const std::lock_guard hold(lock);
  finished += line + '\n';
}

void end_cluster() {
  if (settings.traffic) flush();
}

void barrier() { totals.barriers += settings.traffic != 0; }

void copy(uintptr_t address, size_t bytes, bool write, bool first) {
  touch(address, bytes, write);
  const uint64_t sectors = (address % kSector + bytes + kSector - 1) / kSector;
  totals.requests[write] += first;
  totals.bytes[write] += bytes;
  totals.sectors[write] += sectors;
  totals.fewest[write] += std::min<uint64_t>(sectors, (bytes + 31) / kSector);
}

void access(uintptr_t address, size_t bytes, bool write, const void* pc) {
  const Fiber& f = *worker->running;
  const bool shared = shadow::shared_at(*worker, address).part != nullptr;
  if (!shared) touch(address, bytes, write);
  const uint64_t warp = uint64_t(f.block->rank * kWarp + f.warp());
  const uint64_t key = reinterpret_cast<uintptr_t>(pc) * 512 + warp * 2 + write;
  Place& place = places[key];
  // A range longer than an instruction moves is several of them.
  for (size_t done = 0; done < bytes; done += 16) {
    const auto part = uint8_t(std::min<size_t>(16, bytes - done));
    place.lanes.push_back(
        {address + done, place.visits[f.lane()]++, uint8_t(f.lane()), part, write, shared});
  }
}

}  // namespace opforge::sim::traffic

// For Python: a line per launch since the last call; returns the bytes needed, and forgets them
// once they fit.
extern "C" __attribute__((visibility("default"))) size_t opforge_sim_take_traffic(char* buffer,
                                                                                  size_t size) {
  using namespace opforge::sim::traffic;
  const std::lock_guard hold(lock);
  const size_t needed = finished.size();
  if (needed > size) return needed;
  std::memcpy(buffer, finished.data(), needed);
  finished.clear();
  return needed;
}
