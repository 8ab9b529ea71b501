// SPDX-License-Identifier: Apache-2.0
// Names and source lines of addresses in loaded libraries.
#pragma once

#include <string>
#include <vector>

namespace opforge::sim {

struct Frame {
  std::string function;
  std::string place;  // file:line, empty where the library has no line numbers
};

// The functions that an address is in: what is inlined first, and then what that is inlined into.
std::vector<Frame> frames(const void* pc);
// The file name at the end of a path.
std::string base_name(const std::string& path);
// A function's name without template arguments, parameters and namespaces.
std::string short_name(const std::string& name);

}  // namespace opforge::sim
