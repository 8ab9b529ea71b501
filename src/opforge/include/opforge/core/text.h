// SPDX-License-Identifier: Apache-2.0
// Error texts out of strings and numbers. Without streams: where the C++ runtime is linked
// statically, a stream meets the facets of the other copy of the runtime in the process, and ends
// the process instead of raising the error.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace opforge {

// A part of a text. Where an error is raised it is only noted down; fail() below writes it.
class Part {
 public:
  Part(const char* text) : kind_(Kind::text), text_(text) {}
  Part(const std::string& text) : Part(text.c_str()) {}
  Part(bool yes) : Part(yes ? "true" : "false") {}
  template <std::signed_integral T>
  Part(T number) : kind_(Kind::integer), integer_(number) {}
  template <std::unsigned_integral T>
  Part(T number) : kind_(Kind::natural), natural_(number) {}
  template <std::floating_point T>
  Part(T number) : kind_(Kind::real), real_(double(number)) {}

  void append_to(std::string& text) const {
    char digits[32];
    switch (kind_) {
      case Kind::text:
        text += text_;
        return;
      case Kind::integer:
        std::snprintf(digits, sizeof digits, "%lld", integer_);
        break;
      case Kind::natural:
        std::snprintf(digits, sizeof digits, "%llu", natural_);
        break;
      case Kind::real:
        std::snprintf(digits, sizeof digits, "%g", real_);
    }
    text += digits;
  }

 private:
  enum class Kind { text, integer, natural, real } kind_;
  union {
    const char* text_;
    long long integer_;
    unsigned long long natural_;
    double real_;
  };
};

__attribute__((noinline, cold)) inline std::string text_of(std::initializer_list<Part> parts) {
  std::string text;
  for (const Part& part : parts) part.append_to(text);
  return text;
}

namespace detail {
[[noreturn]] __attribute__((noinline, cold)) inline void fail(std::initializer_list<Part> parts) {
  throw std::runtime_error(text_of(parts));
}
}  // namespace detail

// Raises a RuntimeError: fail("dim ", dim, " is out of range").
template <class... Parts>
[[noreturn]] inline void fail(const Parts&... parts) {
  detail::fail({parts...});
}

}  // namespace opforge
