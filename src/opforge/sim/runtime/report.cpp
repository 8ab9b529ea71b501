// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <tuple>
#include <vector>

namespace opforge::sim {

namespace {

constexpr size_t kMost = 8;  // faults told in full; one cause often shows in many places

struct Reports {
  std::mutex lock;
  std::set<std::tuple<std::string, const void*, const void*>> seen;  // by address: quick
  std::set<std::tuple<std::string, std::string, std::string>> told;  // by place: inlined twice
  std::vector<std::string> faults, warnings;
  size_t untold = 0;

  void forget_faults() {
    faults.clear();
    seen.clear();
    told.clear();
    untold = 0;
  }
};
Reports reports;

std::string base_name(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

// Asks addr2line, which comes with every compiler: function and file:line, innermost first.
std::vector<std::pair<std::string, std::string>> frames(const void* pc) {
  std::vector<std::pair<std::string, std::string>> found;
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
    } else if (line[0] != '?') {
      std::string place = line;
      place = place.substr(0, place.find(" (discriminator"));
      found.emplace_back(function, place);
    }
    is_function = !is_function;
  }
  pclose(pipe);
  return found;
}

// Names without template arguments, parameters and namespaces of ours.
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

// A return address lies behind the call; one byte back is inside it.
const void* before(const void* pc) {
  return pc == nullptr ? nullptr : static_cast<const char*>(pc) - 1;
}

}  // namespace

std::string describe(const void* pc) {
  if (pc == nullptr) return "";
  std::string text;
  for (const auto& [function, place] : frames(before(pc))) {
    const std::string shown = base_name(place);
    if (place.find("opforge_sim/") != std::string::npos || shown.starts_with("cuda_runtime.h") ||
        place.find("opforge/async.h") != std::string::npos ||
        place.find("opforge/cluster.h") != std::string::npos)
      continue;
    if (shown.starts_with("tuple:") || shown.starts_with("invoke.h:") ||
        shown.starts_with("host_api.h:"))
      break;  // how the simulator calls the kernel
    text += (text.empty() ? "" : " < ") + shown + " in " + short_name(function);
  }
  return text.empty() ? "an unknown place" : text;
}

std::string kernel_name(const void* function) {
  const auto found = frames(function);
  return found.empty() ? "?" : short_name(found.back().first);
}

static void add(const char* kind, const std::string& text, const void* pc, const void* second,
                const char* second_label, bool fault) {
  const std::lock_guard hold(reports.lock);
  if (!reports.seen.emplace(kind, pc, second).second) return;
  if (fault && reports.faults.size() >= kMost) {
    ++reports.untold;
    return;
  }
  const std::string place = describe(pc), other = describe(second);
  if (!reports.told.emplace(kind, place, other).second) return;
  std::string full = std::string(kind) + ": " + text;
  if (pc != nullptr) full += "\n    at " + place;
  if (second != nullptr) full += std::string("\n    ") + second_label + " " + other;
  if (worker != nullptr) full += "\n    kernel " + kernel_name(worker->launch->kernel.function);
  (fault ? reports.faults : reports.warnings).push_back(full);
}

void report(const char* kind, const std::string& text, const void* pc, const void* second,
            const char* second_label) {
  add(kind, text, pc, second, second_label, true);
}

void warn(const char* kind, const std::string& text, const void* pc) {
  add(kind, text, pc, nullptr, nullptr, false);
}

void throw_reports() {
  report_out_of_bounds();
  std::string text;
  {
    const std::lock_guard hold(reports.lock);
    if (reports.faults.empty()) return;
    text = "opforge simulator found ";
    const size_t count = reports.faults.size() + reports.untold;
    text += std::to_string(count) + (count == 1 ? " fault" : " faults");
    for (const std::string& fault : reports.faults) text += "\n  " + fault;
    if (reports.untold > 0) text += "\n  … and " + std::to_string(reports.untold) + " more";
    reports.forget_faults();
  }
  throw std::runtime_error(text);
}

void drop_reports() {
  const std::lock_guard hold(reports.lock);
  if (!reports.faults.empty()) reports.forget_faults();  // else warnings would be said again
}

}  // namespace opforge::sim

// For Python: the warnings so far, one after the other, each ended by a zero byte; forgets them.
extern "C" __attribute__((visibility("default"))) size_t opforge_sim_take_warnings(char* buffer,
                                                                                   size_t size) {
  using namespace opforge::sim;
  const std::lock_guard hold(reports.lock);
  std::string all;
  for (const std::string& text : reports.warnings) all += text + '\0';
  if (all.size() > size) return all.size();  // ask again with more room
  std::memcpy(buffer, all.data(), all.size());
  reports.warnings.clear();
  reports.seen.clear();
  reports.told.clear();
  return all.size();
}
