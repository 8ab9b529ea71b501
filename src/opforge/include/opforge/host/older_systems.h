// SPDX-License-Identifier: Apache-2.0
// Lets a library load on systems older than the one it was built on: down to glibc 2.28 and the C++
// runtime of gcc 8, as torch's own wheels do. Only the generated source includes it.
//
// A few functions that every library uses have new versions or helpers in newer runtimes. The
// library gets its own here, made of what older runtimes have; they are hidden from others. What an
// op uses beyond that stays as it is, and `opforge build --wheel` says which symbol it was.
//
// A static C++ runtime would not do: it takes more symbols of a new glibc than it saves, and the
// process would have two runtimes.
#pragma once

#include <cxxabi.h>
#include <dlfcn.h>

#include <exception>
#include <new>
#include <sstream>

#if defined(__GLIBC__) && defined(__x86_64__)
#define OPFORGE_FIRST_GLIBC "2.2.5"  // of this architecture: no system lacks its functions
#elif defined(__GLIBC__) && defined(__aarch64__)
#define OPFORGE_FIRST_GLIBC "2.17"
#endif

#if defined(OPFORGE_FIRST_GLIBC)
// Calls of `name` in this library go to the function as the first glibc has it. The names in C++
// differ from the symbols, because headers may declare these in another way.
#define OPFORGE_AS_FIRST(result, name, parameters, arguments)            \
  extern "C" result opforge_first_##name parameters;                     \
  __asm__(".symver opforge_first_" #name "," #name "@GLIBC_" OPFORGE_FIRST_GLIBC); \
  extern "C" result opforge_##name parameters __asm__(#name);            \
  result opforge_##name parameters { return opforge_first_##name arguments; }

// glibc 2.29 and 2.35 have these without the error handling of System V; the values are the same.
OPFORGE_AS_FIRST(double, exp, (double x), (x))
OPFORGE_AS_FIRST(double, exp2, (double x), (x))
OPFORGE_AS_FIRST(double, log, (double x), (x))
OPFORGE_AS_FIRST(double, log2, (double x), (x))
OPFORGE_AS_FIRST(double, pow, (double x, double y), (x, y))
OPFORGE_AS_FIRST(double, hypot, (double x, double y), (x, y))
// glibc 2.34 moved these from libdl to libc.
OPFORGE_AS_FIRST(void*, dlopen, (const char* path, int mode), (path, mode))
OPFORGE_AS_FIRST(void*, dlsym, (void* library, const char* name), (library, name))
OPFORGE_AS_FIRST(int, dladdr, (const void* address, Dl_info* info), (address, info))
OPFORGE_AS_FIRST(char*, dlerror, (), ())

// glibc 2.32: whether std::shared_ptr may count without atomic operations. It may not: false is
// always right, and torch has threads anyway.
extern "C" char opforge_single_threaded __asm__("__libc_single_threaded");
char opforge_single_threaded = 0;
#endif

#if defined(_GLIBCXX_RELEASE) && _GLIBCXX_RELEASE >= 11
// gcc 9 and 11: out of line in their runtimes. The error texts of torch's headers use them.
template std::basic_ostringstream<char>::basic_ostringstream();
template std::basic_stringstream<char>::basic_stringstream();
template std::string std::basic_stringbuf<char>::str() const&;
template std::string std::basic_stringbuf<char>::str() &&;

// gcc 11: std::vector calls it.
[[noreturn]] void opforge_bad_length() __asm__("_ZSt28__throw_bad_array_new_lengthv");
void opforge_bad_length() { throw std::bad_array_new_length(); }

// gcc 13: what an exception in a noexcept function ends in.
extern "C" [[noreturn]] void opforge_call_terminate(void*) __asm__("__cxa_call_terminate");
void opforge_call_terminate(void* exception) {
  abi::__cxa_begin_catch(exception);
  std::terminate();
}

// gcc 13: stands for <iostream>, whose streams are then made by the runtime itself.
void opforge_streams() __asm__("_ZSt21ios_base_library_initv");
void opforge_streams() {}
#if _GLIBCXX_RELEASE >= 13
static const std::ios_base::Init opforge_streams_made;
#endif
#endif
