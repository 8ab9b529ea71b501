// SPDX-License-Identifier: Apache-2.0
// Tiles of rows on their way into shared memory: a ring of stages that one warp fills with bulk
// copies while the others work on earlier ones. Includes no torch header.
//
// Copies begin and end at 16-byte boundaries. A row that does not is copied with the few bytes
// before and after it up to the next boundaries, and has the same misalignment in shared memory as
// in global memory. Only where that would read past the end of a tensor, the last elements are
// copied one by one.
#pragma once

#include <opforge/core/async.h>

#include <opforge/algorithms/rows.cuh>

namespace opforge {

constexpr int kMaxStages = 8;

// The bytes of a block's shared memory for a ring; 16 KB are left for totals. More than 200 KB
// would be no faster on an H200.
inline int64_t ring_room() { return std::min<int64_t>(200 << 10, most_shared() - (16 << 10)); }

// Rows that begin as far from a 16-byte boundary are one class. How many classes rows of so many
// columns have: a power of two; row r is of class r % classes.
template <class T>
int classes_of(int64_t cols) {
  int classes = 1;
  while (classes * cols % kVec<T> != 0) classes *= 2;
  return classes;
}

// Blocks or clusters, one to a multiprocessor each, that run at the same time. Large clusters
// cannot use every multiprocessor; one that has to wait would double the time.
inline int clusters_at_once(int cluster) {
  return std::max(multiprocessors() * (cluster >= 4 ? 10 : 11) / 11 / cluster, 1);
}

// Some tensors of the same shape, of which a block takes a tile each: `height` rows of `width`
// columns.
template <class T, int Sources>
struct RingParams {
  Rows<const T> source[Sources];
  const T* end[Sources];  // one past the last element
  int sources;            // how many there are
  int64_t rows;
  int64_t step;  // from one row of a tile to the next
  int height, width;
  int pitch;  // bytes from row to row in a stage; 0 if a tile's rows are one run of memory
  int stages;
  int tile_bytes;  // of one source in a stage

  __host__ __device__ int stage_bytes() const { return tile_bytes * sources; }
};

// A thread's position in the ring: a stage, and the phase of its barriers.
struct RingPlace {
  int stage = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void next(int stages) {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

template <class T, int Sources>
class Ring {
 public:
  struct Barriers {
    Barrier full[kMaxStages], empty[kMaxStages];
  };

  // All threads of the block; a __syncthreads() or cluster_sync() follows. `readers`: warps.
  __device__ __forceinline__ Ring(const RingParams<T, Sources>& p, int readers)
      : p_(p), barriers_(shared<Barriers>()), memory_(dynamic_shared()) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < p.stages; ++i) {
        init(barriers_.full[i], kWarp);
        init(barriers_.empty[i], readers);
      }
      publish_barriers();
    }
  }

  // A whole warp: copies the tile of `first_row` and `first_col`, when its stage is free.
  __device__ __forceinline__ void fill(RingPlace& place, int64_t first_row, int64_t first_col,
                                       int width) {
    Barrier& full = barriers_.full[place.stage];
    // The parity before the first one counts as over: the first round does not wait.
    wait(barriers_.empty[place.stage], place.phase ^ 1);
    const int lane = threadIdx.x % kWarp;
    const int64_t left = first_row < p_.rows ? (p_.rows - first_row + p_.step - 1) / p_.step : 0;
    const int height = int(min(int64_t(p_.height), left));
    const int copies = p_.pitch == 0 ? min(height, 1) : height;
    uint32_t announced = 0;
    for (int i = lane; i < copies * p_.sources; i += kWarp) {
      announced +=
          copy(place.stage, i / copies, first_row, i % copies, first_col, width, height, nullptr);
    }
    arrive_expecting(full, announced);
    for (int i = lane; i < copies * p_.sources; i += kWarp) {
      copy(place.stage, i / copies, first_row, i % copies, first_col, width, height, &full);
    }
    place.next(p_.stages);
  }

  // A reader: until the stage is filled.
  __device__ __forceinline__ void await(const RingPlace& place) {
    wait(barriers_.full[place.stage], place.phase);
  }

  // All lanes of a reading warp have read what they want of the stage.
  __device__ __forceinline__ void release(const RingPlace& place) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) arrive(barriers_.empty[place.stage]);
  }

  // Where in a source's part of a stage a tile's row begins, in bytes. Rows that are aligned alike
  // have it in common, whatever the source.
  __device__ __forceinline__ int offset(int64_t first_row, int within, int64_t first_col) const {
    const T* start = p_.source[0].at(first_row) + first_col;
    return misalignment(start) * int(sizeof(T)) + within * pitch();
  }
  // Bytes from row to row.
  __device__ __forceinline__ int pitch() const {
    return p_.pitch == 0 ? p_.width * int(sizeof(T)) : p_.pitch;
  }

  __device__ __forceinline__ unsigned char* stage(const RingPlace& place) const {
    return memory_ + place.stage * p_.stage_bytes();
  }
  __device__ __forceinline__ unsigned char* memory() const { return memory_; }

 private:
  // Copies one run of memory in bulk, and returns the bytes. Without a barrier: copies the elements
  // that the bulk copy leaves, and returns the same.
  __device__ __forceinline__ uint32_t copy(int stage, int source, int64_t first_row, int within,
                                           int64_t first_col, int width, int height,
                                           Barrier* full) const {
    const T* begin = p_.source[source].at(first_row + within * p_.step) + first_col;
    const T* end = begin + (p_.pitch == 0 ? int64_t(height - 1) * p_.width : 0) + width;
    const T* from = begin - misalignment(begin);
    const int over = misalignment(end);
    const T* to = over == 0 ? end : end + (kVec<T> - over);
    if (to > p_.end[source]) to = end - over;
    const uint32_t bytes = to > from ? uint32_t((to - from) * sizeof(T)) : 0;
    T* stored = reinterpret_cast<T*>(memory_ + stage * p_.stage_bytes() + source * p_.tile_bytes +
                                     within * p_.pitch);
    if (full == nullptr) {
      if (to < end) {
        for (const T* one = to > begin ? to : begin; one < end; ++one) stored[one - from] = *one;
        fence_for_copies();  // which may land there later
      }
    } else if (bytes > 0) {
      bulk_copy(stored, from, bytes, *full);
    }
    return bytes;
  }

  const RingParams<T, Sources>& p_;
  Barriers& barriers_;
  unsigned char* memory_;
};

}  // namespace opforge
