// SPDX-License-Identifier: Apache-2.0
// Which tile a product is made with, and in which order. Includes no torch header.
//
// `opforge tune` measures, and writes a line per product:
//
//   bf16 ii 8192 14336 4096 ii_large 8 rows
//
// dtype, majors of a and b (i: inner, o: outer), m, n, k; then the tile, and bands of how many rows
// or columns of tiles. Products of about the same size take that choice. For others there is a rule
// of thumb. The choice depends on the shape, the GPU and the table alone, so results stay the same
// until the table changes.
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/layout.h>
#include <opforge/core/unit.h>
#include <opforge/families/product/call.h>
#include <opforge/families/product/gpu.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace opforge {

// Options of products that nothing follows.
struct NoOptions {};

// A kernel for some majors: the size of its clusters' tiles, their blocks, into how many parts it
// splits the inner dim, and whether clusters share the tiles of the last round (stream.cuh).
template <class Options>
struct ProductTile {
  Unit<bool(const ProductCall&, const Options&)>* unit;
  int m, n, blocks, split;
  double cost;  // of a multiplication, relative to the largest tile's
  bool streams = false;
};

namespace detail {

struct ProductKey {
  std::string kind;  // "bf16 ii"
  int64_t m, n, k;

  explicit ProductKey(const ProductCall& call) : m(call.m), n(call.n), k(call.k) {
    constexpr const char* kNames[] = {"f32", "f16", "bf16", "f64"};
    const auto letter = [](const ProductOperand& x) { return x.major == Major::inner ? 'i' : 'o'; };
    kind = kNames[int(call.dtype)];
    kind += {' ', letter(call.a), letter(call.b[0])};
  }
  ProductKey(std::string kind, int64_t m, int64_t n, int64_t k)
      : kind(std::move(kind)), m(m), n(n), k(k) {}

  // How far the sizes are apart, as a sum of logarithms.
  double distance(const ProductKey& other) const {
    const auto apart = [](int64_t a, int64_t b) {
      return std::abs(std::log(double(a) / double(b)));
    };
    return apart(m, other.m) + apart(n, other.n) + apart(k, other.k);
  }
};

struct ProductChoice {
  ProductKey key;
  std::string tile;
  int group;
  bool by_columns;
};

// What was measured for this GPU; set before products are made, or between them.
struct ProductChoices {
  std::mutex lock;
  std::shared_ptr<const std::vector<ProductChoice>> table;
  bool records = false;
  std::string recorded;  // a line per product: its key, then the tiles it could have

  void set(const char* text) {
    auto parsed = std::make_shared<std::vector<ProductChoice>>();
    for (std::string_view rest = text; !rest.empty();) {
      const std::string line(rest.substr(0, rest.find('\n')));
      rest.remove_prefix(std::min(rest.size(), line.size() + 1));
      char dtype[8], majors[4], tile[32], order[8];
      long long m, n, k;
      int group;
      if (std::sscanf(line.c_str(), "%7s %3s %lld %lld %lld %31s %d %7s", dtype, majors, &m, &n, &k,
                      tile, &group, order) != 8) {
        continue;  // a comment
      }
      parsed->push_back({{std::string(dtype) + ' ' + majors, m, n, k},
                         tile,
                         std::max(1, group),
                         std::string_view(order) == "columns"});
    }
    const std::lock_guard hold(lock);
    table = parsed->empty() ? nullptr : std::move(parsed);
  }
};
inline ProductChoices product_choices;

// Whether a unit has the tile that was chosen. Tiles are measured as calls without gradients make
// them. Units that keep more for gradients are called like the others, with _kept.
inline bool is_tile(std::string_view unit, std::string_view chosen) {
  return unit.starts_with(chosen) &&
         (unit.size() == chosen.size() || unit.substr(chosen.size()) == "_kept");
}

// The fastest by a rule of thumb: the number of rounds that the GPU needs for all tiles, and what a
// tile takes. A tile also costs as much as some inner steps to begin and to end.
template <class Options>
const ProductTile<Options>& usual_tile(std::span<const ProductTile<Options>> tiles,
                                       const ProductCall& call) {
  const ProductTile<Options>* best = nullptr;
  double least = 0;
  for (const ProductTile<Options>& tile : tiles) {
    int64_t down = ceil_div(call.m, tile.m) * call.batches, k = call.k;
    if (call.groups.kind == Groups::rows) {  // of unknown sizes: each has half a tile too much
      down = call.m / tile.m + ceil_div(std::min(call.m, call.batches), 2);
    } else if (call.groups.kind == Groups::inner) {
      k = ceil_div(call.k, call.batches);
    }
    const int64_t count = down * ceil_div(call.n, tile.n);
    const int64_t clusters = std::max(1, multiprocessors() / tile.blocks);
    // Sharing tiles is for results that have too few of them.
    if (tile.streams && count >= clusters) continue;
    const double rounds =
        tile.streams ? double(count) / double(clusters) : double(ceil_div(count, clusters));
    const double steps = double(ceil_div(k, tile.split)) + 256;
    const double work = double(tile.m) * tile.n * tile.split / tile.blocks;
    const double combining = tile.streams ? 768 : 0;  // takes as long as so many steps
    const double time = (rounds * steps + combining) * work * tile.cost;
    if (best == nullptr || time < least) best = &tile, least = time;
  }
  return *best;
}

}  // namespace detail

// Makes the product with one of these tiles. False if its library has no code for the GPU.
template <class Options>
bool run_chosen(std::span<const ProductTile<Options>> tiles, ProductCall call,
                const Options& options) {
  constexpr double kSimilar = 0.4;  // one size by half as much, for example
  auto& known = detail::product_choices;
  std::shared_ptr<const std::vector<detail::ProductChoice>> table;
  {
    const std::lock_guard hold(known.lock);
    table = known.table;
    if (known.records) {
      const detail::ProductKey key(call);
      known.recorded += text_of({key.kind, " ", key.m, " ", key.n, " ", key.k});
      for (const auto& tile : tiles) known.recorded += text_of({" ", tile.unit->name()});
      known.recorded += '\n';
    }
  }
  if (table != nullptr) {
    const detail::ProductKey key(call);
    const ProductTile<Options>* nearest = nullptr;
    double least = kSimilar;
    for (const detail::ProductChoice& choice : *table) {
      if (choice.key.kind != key.kind || choice.key.distance(key) >= least) continue;
      const auto tile = std::ranges::find_if(
          tiles, [&](const auto& t) { return detail::is_tile(t.unit->name(), choice.tile); });
      if (tile == tiles.end()) continue;  // of an older version
      nearest = &*tile, least = choice.key.distance(key);
      call.group = choice.group, call.by_columns = choice.by_columns;
    }
    if (nearest != nullptr) return (*nearest->unit)(call, options);
  }
  return (*detail::usual_tile(tiles, call).unit)(call, options);
}

}  // namespace opforge

// One of each per library, found by name from Python. Weak: an op may have several source files.
extern "C" __attribute__((visibility("default"), weak)) void opforge_set_choices(const char* text) {
  opforge::detail::product_choices.set(text);  // unreached: only opforge.build.load calls it
}

// With `start`, products are written down from now on. Without, returns what was.
extern "C" __attribute__((visibility("default"), weak)) const char* opforge_record_products(
    int start) {
  static std::string result;                       // unreached: only opforge.tune calls it
  auto& known = opforge::detail::product_choices;  // unreached: as above
  const std::lock_guard hold(known.lock);          // unreached: as above
  known.records = start != 0;                      // unreached: as above
  result = std::exchange(known.recorded, {});      // unreached: as above
  return result.c_str();                           // unreached: as above
}
