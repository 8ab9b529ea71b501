// SPDX-License-Identifier: Apache-2.0
// Memory next to inaccessible pages: each block has a mapping of its own.
#pragma once

#include <cstddef>
#include <string>

namespace opforge::guard {

// Which end of a block is next to an inaccessible page.
enum class Side : int { none, end, start };

constexpr size_t kAlignment = 64;  // what torch promises for the start of an allocation

// A block of memory, or null if there is none. If its size is no multiple of the alignment, there
// is a gap between its end and the page. The gap, and the rest of the mapping, are filled with a
// pattern.
void* allocate(size_t bytes, Side side);
// Unmaps a block at once; false if there is none at this address.
bool release(void* data);

// Names the block that holds the tensor at `data`, and makes it read-only if asked for. A block
// that has a name already stays as it is.
void name(const void* data, size_t bytes, size_t element, const char* name, bool read_only);

// Checks that the pattern around every block is unchanged; notes for take() where it is not.
void verify();
// What was found since the last call, a line each.
std::string take();

struct Access {
  const char* kind;  // null: the address belongs to no block
  std::string text;  // "reads 1 element past the end of x, …"
};
Access describe(const void* address, bool writes);

}  // namespace opforge::guard
