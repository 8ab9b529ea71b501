// SPDX-License-Identifier: Apache-2.0
// AddressSanitizer, where the process was started with it: its findings become faults of the kernel
// that runs, with block and thread. It is told to go on after each.
#include <cstring>
#include <mutex>
#include <vector>

#include "report.h"
#include "state.h"

extern "C" {
__attribute__((weak)) void __asan_set_error_report_callback(void (*callback)(const char*));
__attribute__((weak)) void* __asan_get_report_pc();
__attribute__((weak)) int __asan_get_report_access_type();  // 1: a write
__attribute__((weak)) size_t __asan_get_report_access_size();
__attribute__((weak)) const char* __asan_get_report_description();
}

namespace opforge::sim {

namespace {

struct Finding {
  const void* pc;
  std::string text;
};
std::mutex lock;
std::vector<Finding> findings;

// "0x… is located 4 bytes after 128-byte region …", which says where the access went.
std::string whereabouts(const char* report) {
  const char* start = std::strstr(report, " is located ");
  if (start == nullptr) return "";
  start += std::strlen(" is located ");
  std::string line(start, std::strcspn(start, "\n["));
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return ", " + line;
}

// Comes while AddressSanitizer holds its locks: take notes, no more.
void found(const char* report) {
  const std::lock_guard hold(lock);
  const char* verb = __asan_get_report_access_type() == 1 ? " writes " : " reads ";
  const std::string who = in_kernel ? name_of(*worker->running) : "host code";
  // A return address is expected further on: one past the instruction.
  const void* pc = static_cast<const char*>(__asan_get_report_pc()) + 1;
  findings.push_back({pc, who + verb + std::to_string(__asan_get_report_access_size()) +
                              " bytes out of bounds (" + __asan_get_report_description() + ")" +
                              whereabouts(report)});
}

__attribute__((constructor)) void listen() {
  if (__asan_set_error_report_callback != nullptr) __asan_set_error_report_callback(found);
}

}  // namespace

void report_out_of_bounds() {
  std::vector<Finding> taken;
  {
    const std::lock_guard hold(lock);
    taken.swap(findings);
  }
  for (const Finding& f : taken) report("out-of-bounds", f.text, f.pc);
}

}  // namespace opforge::sim
