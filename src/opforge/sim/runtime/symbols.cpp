// SPDX-License-Identifier: Apache-2.0
#include "symbols.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <sstream>

namespace opforge::sim {

// Asks addr2line, which comes with every compiler.
std::vector<Frame> frames(const void* pc) {
  std::vector<Frame> found;
  Dl_info info{};
  if (pc == nullptr || dladdr(pc, &info) == 0 || info.dli_fname == nullptr) return found;
  const auto offset = static_cast<const char*>(pc) - static_cast<const char*>(info.dli_fbase);
  std::string library;
  for (const char* c = info.dli_fname; *c != 0; ++c)
    library += *c == '\'' ? "'\\''" : std::string(1, *c);
  std::ostringstream command;
  command << "addr2line -C -f -i -e '" << library << "' 0x" << std::hex << offset << " 2>/dev/null";
  FILE* pipe = popen(command.str().c_str(), "r");
  if (pipe == nullptr) return found;
  char line[4096];
  std::string function;
  bool is_function = true;
  while (fgets(line, sizeof line, pipe) != nullptr) {
    line[strcspn(line, "\n")] = 0;
    if (is_function) {
      function = line;
    } else {
      std::string place = line[0] == '?' || line[0] == ':' ? "" : line;
      place = place.substr(0, place.find(" (discriminator"));
      found.push_back({function, place});
    }
    is_function = !is_function;
  }
  pclose(pipe);
  return found;
}

std::string base_name(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

std::string short_name(const std::string& name) {
  std::string result;
  int depth = 0;
  for (const char c : name) {
    if (c == '<') ++depth;
    if (depth == 0 && c == '(') break;
    if (depth == 0) result += c;
    if (c == '>') --depth;
  }
  const size_t space = result.rfind(' ');  // a return type
  if (space != std::string::npos) result = result.substr(space + 1);
  const size_t colon = result.rfind("::");
  return colon == std::string::npos ? result : result.substr(colon + 2);
}

}  // namespace opforge::sim
