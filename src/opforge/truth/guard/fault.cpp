// SPDX-License-Identifier: Apache-2.0
// Faults of host code. Those of simulated kernels are the simulator's, which asks what they mean.
#include "fault.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "../../sim/runtime/symbols.h"
#include "blocks.h"

namespace opforge::guard {

namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS};
struct sigaction before[std::size(kSignals)];

const char* library_of(const void* pc) {
  Dl_info info{};
  return dladdr(pc, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

bool is_of_the_c_library(const char* path) {
  return sim::base_name(path).starts_with("libc.") || sim::base_name(path).starts_with("libc-");
}

// The calls that led to `pc`, inside the library it is in: "cpu.cpp:41 in row_sum < cpu.cpp:88 in
// …".
std::string where(const void* pc) {
  void* calls[64];
  void **at = calls, **const end = calls + backtrace(calls, std::size(calls));
  at = std::find(at, end, const_cast<void*>(pc));
  if (at == end) *(at = calls) = const_cast<void*>(pc);               // cannot be unwound
  while (at + 1 < end && is_of_the_c_library(library_of(*at))) ++at;  // memcpy: who called it?
  const std::string library = library_of(*at);
  std::string text;
  for (int shown = 0; at < end && shown < 6 && library == library_of(*at); ++at) {
    // A return address lies behind the call.
    const void* const inside = *at == pc ? pc : static_cast<const char*>(*at) - 1;
    for (const auto& [function, place] : sim::frames(inside)) {
      if (place.find("/c++/") != std::string::npos || ++shown > 6) continue;
      text += (text.empty() ? "" : " < ") + (place.empty() ? "" : sim::base_name(place) + " in ") +
              sim::short_name(function);
    }
  }
  return text + "\n    in " + sim::base_name(library);
}

void on_fault(int signal, siginfo_t* info, void* context) {
  static std::atomic<bool> told{false};
  const auto& registers = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs;
  const bool writes = (registers[REG_ERR] & 2) != 0;  // of a page fault on x86
  const Access access = describe(info->si_addr, writes);
  if (access.kind == nullptr) {  // faults again, for whoever handled it before
    sigaction(signal, &before[signal == SIGSEGV ? 0 : 1], nullptr);
    return;
  }
  while (told.exchange(true)) pause();  // another thread ends the process
  alarm(30);                            // whatever locks the interrupted code may hold
  const auto* const pc = reinterpret_cast<const void*>(registers[REG_RIP]);
  std::string text = "opforge guard: " + std::string(access.kind) + ": the op " + access.text;
  text += "\n    at " + where(pc) + "\n";
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(STDERR_FILENO, text.data() + done, text.size() - done);
    if (n <= 0) break;
    done += size_t(n);
  }
  _exit(1);
}

}  // namespace

void handle_faults() {
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &action, &before[i]);
}

}  // namespace opforge::guard
