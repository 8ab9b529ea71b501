// SPDX-License-Identifier: Apache-2.0
// Faults found while a kernel runs.
#pragma once

#include <string>

#include "state.h"

namespace opforge::sim {

// Records a fault of the running kernel, once per kind and place. The launch fails with all of
// them. `second` is the other place involved, if there is one.
void report(const char* kind, const std::string& text, const void* pc, const void* second = nullptr,
            const char* second_label = nullptr);
// The same for something that is no fault on its own.
void warn(const char* kind, const std::string& text, const void* pc);

// Reports what AddressSanitizer found.
void report_out_of_bounds();

// Throws what was reported, if anything.
void throw_reports();

// Forgets what was reported but not thrown, since the op failed in a way of its own.
void drop_reports();

// "kernel.cuh:41 (from row_sums, kernel.cuh:88)" for an address in a loaded library.
std::string describe(const void* pc);
constexpr const char* kUnknown = "an unknown place";  // what it says of others
std::string kernel_name(const void* function);
std::string in_hex(uint64_t number);  // "0x1f"

}  // namespace opforge::sim
