// SPDX-License-Identifier: Apache-2.0
// Takes the place of the C library's: a failed assertion in a kernel is reported with its block and
// thread. Without an include guard, like the original.
#include <opforge_sim/runtime.h>

#undef assert
#define assert(expression) \
  ((expression)            \
       ? void(0)           \
       : ::opforge::sim::assertion_failed(#expression, ::std::source_location::current()))
