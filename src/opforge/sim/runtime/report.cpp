// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "symbols.h"

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

// Headers that only call the simulator.
constexpr const char* kThin[] = {"opforge/core/async.h",     "opforge/core/cluster.h",
                                 "opforge/core/launch.h",    "opforge/core/tensor_map.h",
                                 "opforge/core/warpgroup.h", "opforge/core/wgmma.h"};

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
    if (place.empty()) continue;
    if (place.find("opforge_sim/") != std::string::npos || shown.starts_with("cuda_runtime.h") ||
        std::ranges::any_of(
            kThin, [&](const char* header) { return place.find(header) != std::string::npos; }))
      continue;
    if (shown.starts_with("tuple:") || shown.starts_with("invoke.h:") ||
        shown.starts_with("host_api.h:"))
      break;  // how the simulator calls the kernel
    text += (text.empty() ? "" : " < ") + shown + " in " + short_name(function);
  }
  return text.empty() ? kUnknown : text;
}

std::string in_hex(uint64_t number) {
  char digits[24];
  std::snprintf(digits, sizeof digits, "0x%llx", static_cast<unsigned long long>(number));
  return digits;
}

std::string kernel_name(const void* function) {
  const auto found = frames(function);
  return found.empty() ? "?" : short_name(found.back().function);
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
