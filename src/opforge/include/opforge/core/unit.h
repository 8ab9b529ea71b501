// SPDX-License-Identifier: Apache-2.0
// Units: functions in sources that are compiled on demand, see Build(on_demand=…). Includes no
// torch header.
//
//   units/large.cu    static void run(const Params& params) {…}
//                     OPFORGE_UNIT(large, run)
//   cuda.cu           static opforge::Unit<void(const Params&)> large("large");
//                     large(params);  // compiles and loads units/large.cu if need be
#pragma once

#include <opforge/core/text.h>

#include <atomic>
#include <string>
#include <type_traits>
#include <utility>

namespace opforge {

namespace detail {

struct UnitEntry {
  void (*function)();
  const char* type;
};

template <class F>
constexpr const char* name_of_type() {
  return __PRETTY_FUNCTION__;
}

}  // namespace detail
}  // namespace opforge

extern "C" __attribute__((visibility("hidden"))) void* opforge_find_unit(const char* name);

namespace opforge {

// Says what a function in another library takes: Unit<int(const float*, int64_t)>.
template <class F>
class Unit;

template <class R, class... A>
class Unit<R(A...)> {
 public:
  constexpr explicit Unit(const char* name) : name_(name) {}

  const char* name() const { return name_; }

  R operator()(A... arguments) {
    Function* function = function_.load(std::memory_order_acquire);
    if (function == nullptr) [[unlikely]] {
      function = find();
      function_.store(function, std::memory_order_release);
    }
    return function(std::forward<A>(arguments)...);
  }

 private:
  using Function = R(A...);

  Function* find() const {
    const auto* const entry = static_cast<const detail::UnitEntry*>(opforge_find_unit(name_));
    if (entry == nullptr)
      fail("no source that is compiled on demand has OPFORGE_UNIT(", name_, ")");
    const char* const type = detail::name_of_type<Function>();
    if (std::string(entry->type) != type)
      fail("the unit ", name_, " is called as ", type, ", but is ", entry->type);
    return reinterpret_cast<Function*>(entry->function);
  }

  const char* name_;
  std::atomic<Function*> function_ = nullptr;
};

#define OPFORGE_UNIT(name, function)                                                  \
  extern "C" {                                                                        \
  extern const ::opforge::detail::UnitEntry opforge_unit_##name                       \
      __attribute__((visibility("hidden")));                                          \
  const ::opforge::detail::UnitEntry opforge_unit_##name = {                          \
      reinterpret_cast<void (*)()>(&function),                                        \
      ::opforge::detail::name_of_type<std::remove_pointer_t<decltype(&function)>>()}; \
  }

}  // namespace opforge
