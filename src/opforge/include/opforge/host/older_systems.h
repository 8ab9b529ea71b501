// SPDX-License-Identifier: Apache-2.0
// Lets a library load on systems older than the one it was built on: on all that torch's own wheels
// are for, with glibc 2.28 and the C++ runtime of gcc 8. Only the generated source includes it.
//
// A few functions that every library uses have new versions or helpers in newer runtimes. The
// library gets its own here, made of what older runtimes have. They are hidden from others, and
// weak, so that a static C++ runtime may bring them along. What an op uses beyond that stays as it
// is, and `opforge build --wheel` says which symbol that was.
//
// A static C++ runtime instead would take newer symbols of glibc than it saves, and a process would
// have two runtimes.
#pragma once

#include <cxxabi.h>
#include <dlfcn.h>

#include <exception>
#include <new>
#include <sstream>

#if defined(__GLIBC__) && defined(__x86_64__)
#define OPFORGE_FIRST_GLIBC "2.2.5"  // of this architecture: every system has its functions
#elif defined(__GLIBC__) && defined(__aarch64__)
#define OPFORGE_FIRST_GLIBC "2.17"
#endif

// A function or variable that the library finds as `symbol`. Its name in C++ is another, because
// headers may declare the symbol as well.
#define OPFORGE_AS(symbol) __asm__(symbol) __attribute__((weak, visibility("hidden")))

#if defined(OPFORGE_FIRST_GLIBC)
// `name` in this library calls the function that the first glibc had.
#define OPFORGE_AS_FIRST(result, name, parameters, arguments)                      \
  extern "C" result opforge_first_##name parameters;                               \
  __asm__(".symver opforge_first_" #name "," #name "@GLIBC_" OPFORGE_FIRST_GLIBC); \
  extern "C" result opforge_##name parameters OPFORGE_AS(#name);                   \
  result opforge_##name parameters { return opforge_first_##name arguments; }

// glibc 2.29 and 2.35 have these anew, without System V's errors. Only signs of NaN differ.
OPFORGE_AS_FIRST(double, exp, (double x), (x))
OPFORGE_AS_FIRST(double, exp2, (double x), (x))
OPFORGE_AS_FIRST(double, log, (double x), (x))
OPFORGE_AS_FIRST(double, log2, (double x), (x))
OPFORGE_AS_FIRST(double, pow, (double x, double y), (x, y))
OPFORGE_AS_FIRST(double, hypot, (double x, double y), (x, y))
// glibc 2.34 has moved these from libdl to libc.
OPFORGE_AS_FIRST(void*, dlopen, (const char* path, int mode), (path, mode))
OPFORGE_AS_FIRST(void*, dlsym, (void* library, const char* name), (library, name))
OPFORGE_AS_FIRST(int, dladdr, (const void* address, Dl_info* info), (address, info))
OPFORGE_AS_FIRST(char*, dlerror, (), ())

// glibc 2.32: whether a std::shared_ptr may count without atomic operations. "No" is always right,
// and a process with torch has threads anyway.
extern "C" char opforge_single_threaded OPFORGE_AS("__libc_single_threaded");
char opforge_single_threaded = 0;
#endif

#if defined(_GLIBCXX_RELEASE) && _GLIBCXX_RELEASE >= 11
// gcc 9 and 11 have these in their runtimes. The error texts of torch's headers use them.
template std::basic_ostringstream<char>::basic_ostringstream();
template std::basic_stringstream<char>::basic_stringstream();
template std::string std::basic_stringbuf<char>::str() const&;
template std::string std::basic_stringbuf<char>::str() &&;

// gcc 11: std::vector calls it.
[[noreturn]] void opforge_bad_length() OPFORGE_AS("_ZSt28__throw_bad_array_new_lengthv");
void opforge_bad_length() { throw std::bad_array_new_length(); }

// gcc 13: where an exception in a noexcept function ends.
extern "C" [[noreturn]] void opforge_call_terminate(void*) OPFORGE_AS("__cxa_call_terminate");
void opforge_call_terminate(void* exception) {
  abi::__cxa_begin_catch(exception);
  std::terminate();
}

// gcc 13: <iostream> asks for it, since the runtime makes std::cout itself. Older ones do not.
void opforge_streams() OPFORGE_AS("_ZSt21ios_base_library_initv");
void opforge_streams() {}
#if _GLIBCXX_RELEASE >= 13
static const std::ios_base::Init opforge_streams_made;
#endif
#endif
