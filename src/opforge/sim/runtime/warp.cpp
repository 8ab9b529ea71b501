// SPDX-License-Identifier: Apache-2.0
// What the lanes of a warp do together: each brings its offer and waits until all named have come.
#include "report.h"
#include "shadow.h"
#include "state.h"

namespace opforge::sim {

namespace {

// The lane a shuffle reads, or -1 for the lane's own value.
int source_lane(const Fiber& f) {
  const Offer& o = f.offer;
  const int lane = f.lane(), base = lane & ~(o.width - 1);
  switch (o.operation) {
    case Lanes::up:
      return lane - (o.argument & 31) >= base ? lane - (o.argument & 31) : -1;
    case Lanes::down:
      return lane + (o.argument & 31) < base + o.width ? lane + (o.argument & 31) : -1;
    case Lanes::shuffle:
      return base + (o.argument & (o.width - 1));
    default:
      // CUDA defines this too, but no kernel can want it: some lanes would get their own value.
      if (o.argument < 0 || o.argument >= o.width) {
        report("shuffle",
               name_of(f) + " shuffles with lane mask " + std::to_string(o.argument) +
                   ", out of range for a width of " + std::to_string(o.width),
               f.site.pc);
        return -1;
      }
      return lane ^ o.argument;
  }
}

uint64_t shuffled(const Fiber& f, const Fiber* lanes, uint32_t present) {
  const int from = source_lane(f);
  if (from < 0 || from == f.lane()) return f.offer.value;
  if ((present >> from & 1) == 0) {
    const bool named = f.offer.mask >> from & 1;
    report("shuffle",
           name_of(f) + " reads lane " + std::to_string(from) + ", which " +
               (named ? "has exited" : "is not in the mask"),
           f.site.pc);
    return f.offer.value;
  }
  return lanes[from].offer.value;
}

uint32_t combine(Reduce how, uint32_t a, uint32_t b) {
  switch (how) {
    case Reduce::add:
      return a + b;
    case Reduce::min:
      return a < b ? a : b;
    case Reduce::max:
      return a > b ? a : b;
    case Reduce::min_signed:
      return int32_t(a) < int32_t(b) ? a : b;
    case Reduce::max_signed:
      return int32_t(a) > int32_t(b) ? a : b;
    case Reduce::bit_and:
      return a & b;
    case Reduce::bit_or:
      return a | b;
    default:
      return a ^ b;
  }
}

uint64_t outcome(const Fiber& f, const Fiber* lanes, uint32_t present) {
  uint32_t yes = 0;
  for (int i = 0; i < kWarp; ++i) {
    if (present >> i & 1) yes |= uint32_t(lanes[i].offer.value != 0) << i;
  }
  switch (f.offer.operation) {
    case Lanes::sync:
    case Lanes::multiply:
      return 0;
    case Lanes::ballot:
      return yes;
    case Lanes::all:
      return yes == present;
    case Lanes::any:
      return yes != 0;
    case Lanes::match: {
      uint32_t equal = 0;
      for (int i = 0; i < kWarp; ++i) {
        if ((present >> i & 1) && lanes[i].offer.value == f.offer.value) equal |= 1u << i;
      }
      return equal;
    }
    case Lanes::reduce: {
      bool first = true;
      uint32_t result = 0;
      for (int i = 0; i < kWarp; ++i) {
        if ((present >> i & 1) == 0) continue;
        const auto value = uint32_t(lanes[i].offer.value);
        result = first ? value : combine(Reduce(f.offer.argument), result, value);
        first = false;
      }
      return result;
    }
    default:
      return shuffled(f, lanes, present);
  }
}

// The product of the warp, for each lane its 4 sums. Lanes hold rows of a and columns of b in
// groups of four, 4 bytes each, as ldmatrix gives them.
void multiply(const Fiber* lanes) {
  constexpr int kRows = 16, kCols = 8, kMostInner = 16;
  const auto part = [&](int lane) {
    return reinterpret_cast<const WarpProduct*>(uintptr_t(lanes[lane].offer.value));
  };
  const int inner = part(0)->inner, half = inner / 2;
  float a[kRows][kMostInner], b[kCols][kMostInner];
  const auto read = [&](const uint32_t* word, bool upper, int t, float* row) {
    part(0)->widen(word, row + (upper ? half : 0) + t * (half / 4), half / 4);
  };
  for (int lane = 0; lane < kWarp; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) read(part(lane)->a + i, i / 2 != 0, t, a[g + i % 2 * 8]);
    for (int i = 0; i < 2; ++i) read(part(lane)->b + i, i != 0, t, b[g]);
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const float *x = a[lane / 4 + i / 2 * 8], *y = b[lane % 4 * 2 + i % 2];
      float& sum = part(lane)->sums[i];
      for (int k = 0; k < inner; ++k) sum += x[k] * y[k];
    }
  }
}

}  // namespace

void try_complete(Block& b, int warp, int at) {
  WarpState& state = b.warps[warp];
  Fiber* lanes = &b.fibers[warp * kWarp];
  const Offer& wanted = lanes[at].offer;
  const uint32_t present = wanted.mask & state.alive;
  if ((state.waiting & present) != present) return;
  for (int i = 0; i < kWarp; ++i) {
    if ((present >> i & 1) &&
        (lanes[i].offer.operation != wanted.operation || lanes[i].offer.mask != wanted.mask)) {
      return;  // never completes: reported when nothing else can run
    }
  }
  if (wanted.operation == Lanes::multiply) {
    if (present == 0xffffffffu) {
      multiply(lanes);
    } else {
      report("shuffle",
             name_of(lanes[at]) + " multiplies with its warp, of which some lanes have exited",
             lanes[at].site.pc);
    }
  }
  for (int i = 0; i < kWarp; ++i) {
    if (present >> i & 1) lanes[i].result = outcome(lanes[i], lanes, present);
  }
  if (wanted.operation == Lanes::sync) shadow::warp_sync(b, warp, present);
  state.waiting &= ~present;
  for (int i = 0; i < kWarp; ++i) {
    if (present >> i & 1) lanes[i].state = State::ready;
  }
}

uint64_t warp(const Offer& offer, const Where& where) {
  Fiber& f = *worker->running;
  f.site = {where, __builtin_return_address(0)};
  f.offer = offer;
  if ((offer.mask >> f.lane() & 1) == 0) {
    report("shuffle", name_of(f) + " is not in the mask it passes", f.site.pc);
    f.offer.mask |= 1u << f.lane();
  }
  if (offer.width < 1 || offer.width > kWarp || (offer.width & (offer.width - 1)) != 0) {
    report("shuffle", "a width of " + std::to_string(offer.width) + " is no power of two up to 32",
           f.site.pc);
    f.offer.width = kWarp;
  }
  f.state = State::in_warp;
  f.block->warps[f.warp()].waiting |= 1u << f.lane();
  try_complete(*f.block, f.warp(), f.lane());
  suspend();  // also the last one to come: the others are to go on in their order
  return f.result;
}

}  // namespace opforge::sim
