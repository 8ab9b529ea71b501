// SPDX-License-Identifier: Apache-2.0
// Memory that lies against inaccessible pages: each block has a mapping of its own.
#pragma once

#include <cstddef>
#include <string>

namespace opforge::guard {

// Which end of a block lies at an inaccessible page.
enum class Side : int { none, end, start };

constexpr size_t kAlignment = 64;  // what torch promises for the start of an allocation

// A block of memory; null if there is none to be had. An end that is no multiple of the alignment
// leaves a gap before its page, which is filled with a pattern, and so is what remains of a page.
void* allocate(size_t bytes, Side side);
// Unmaps a block at once; false if there is none at this address.
bool release(void* data);

// The tensor that lies at `data`, in some block: from then on the block is known by that name, and
// read-only if asked for. One that has a name already stays as it is.
void name(const void* data, size_t bytes, size_t element, const char* name, bool read_only);

// Looks whether the pattern around every block is as it was; what was not is kept for take().
void verify();
// What was found since the last call, a line each.
std::string take();

struct Access {
  const char* kind;  // null: the address belongs to no block
  std::string text;  // "reads 1 element past the end of x, …"
};
Access describe(const void* address, bool writes);

}  // namespace opforge::guard
