// SPDX-License-Identifier: Apache-2.0
// What the generated source of every library is made of: it registers kernels with torch, and finds
// those that are in other parts of the op. The functions of torch's stable ABI are declared here,
// because their header takes longer to compile than all the rest.
#pragma once

#include <dlfcn.h>
#include <opforge/core/text.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>

extern "C" {
int32_t aoti_torch_library_init_impl(const char* ns, const char* key, const char* file,
                                     uint32_t line, void** library);
int32_t torch_library_impl(void* library, const char* name, void (*)(uint64_t*, uint64_t, uint64_t),
                           uint64_t built_with);
int32_t aoti_torch_delete_library_object(void* library);
int32_t aoti_torch_get_dtype(void* tensor, int32_t* dtype);
int32_t aoti_torch_delete_tensor_object(void* tensor);
int32_t torch_delete_list(void* list);
int32_t aoti_torch_dtype_float32();
int32_t aoti_torch_dtype_float16();
int32_t aoti_torch_dtype_bfloat16();
int32_t aoti_torch_dtype_float64();
__attribute__((visibility("hidden"))) void* opforge_find_unit(const char* name);
}

namespace opforge {

// How torch calls a kernel: arguments come on a stack, results go there.
using Kernel = void (*)(uint64_t* stack, uint64_t arguments, uint64_t returns);

inline bool same(const char* a, const char* b) { return std::strcmp(a, b) == 0; }

// Kernels of torch for as long as the library is loaded.
class Registration {
 public:
  struct Entry {
    const char* schema;
    Kernel kernel;
  };

  // `built_with` is torch's TORCH_ABI_VERSION.
  Registration(const char* ns, const char* key, uint64_t built_with,
               std::span<const Entry> entries) {
    int32_t failed = aoti_torch_library_init_impl(ns, key, __FILE__, __LINE__, &library_);
    for (const auto& [schema, kernel] : entries) {
      const std::string below = std::string(schema) + ".below_autograd";
      for (const char* name : {schema, below.c_str()})
        failed |= torch_library_impl(library_, name, kernel, built_with);
      if (failed) fail("torch refuses the kernel of ", ns, "::", schema);
    }
  }
  ~Registration() { aoti_torch_delete_library_object(library_); }
  Registration(const Registration&) = delete;

 private:
  void* library_ = nullptr;
};

// Finds the library of a part, and in it what `name` stands for; null, with a text in `error`,
// where there is none. Python sets one that builds what is missing.
using Loader = void* (*)(const char* part, const char* name, char* error, uint64_t room);

inline std::atomic<Loader> loader = nullptr;

// Without Python: the library is in the folder of this one, where `opforge build --out` puts it.
inline void* find_beside(const char* stem, const char* part, const char* name, char* error,
                         uint64_t room) {
  Dl_info here;
  dladdr(reinterpret_cast<const void*>(&find_beside), &here);
  const std::string mine = here.dli_fname;
  const std::string path = mine.substr(0, mine.rfind('/') + 1) + stem + "-" + part + ".so";
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  using Find = void* (*)(const char*);
  const auto find = library == nullptr ? nullptr : Find(dlsym(library, "opforge_find"));
  if (find != nullptr) return find(name);
  std::snprintf(error, room, "%s cannot be loaded: %s", path.c_str(), dlerror());
  return nullptr;
}

inline void* find_part(const char* stem, const char* part, const char* name) {
  char error[4096] = "the loader gave no reason";
  void* found = nullptr;
  if (loader == nullptr) found = find_beside(stem, part, name, error, sizeof error);
  // Torch may call as soon as the library is loaded, a moment before Python sets the loader.
  for (int i = 0; found == nullptr && loader == nullptr && i < 100; ++i) usleep(10000);
  if (const Loader load = loader; found == nullptr && load != nullptr)
    found = load(part, name, error, sizeof error);
  if (found == nullptr) fail(static_cast<const char*>(error));
  return found;
}

void* from_part(const char* part, const char* name);  // OPFORGE_LOADER defines it

struct Dtype {
  const char* part;
  int32_t code;  // torch's
};

// The kernels of one schema, each in the part for a dtype: a call goes to that of its first tensor.
class ByDtype {
 public:
  // `kinds` has a letter per argument: t tensor, l list, T and L optional ones, o other optional
  // values, s what lies on the stack itself.
  ByDtype(const char* schema, const char* kinds, std::span<const Dtype> dtypes)
      : schema_(schema), kinds_(kinds), dtypes_(dtypes) {}

  void operator()(uint64_t* stack, uint64_t arguments, uint64_t returns) {
    int32_t code = -1;
    aoti_torch_get_dtype(reinterpret_cast<void*>(stack[std::strchr(kinds_, 't') - kinds_]), &code);
    size_t i = 0;
    while (i < dtypes_.size() && dtypes_[i].code != code) ++i;
    Kernel kernel = i < dtypes_.size() ? known_[i].load(std::memory_order_acquire) : nullptr;
    if (kernel == nullptr) [[unlikely]] {
      try {
        if (i == dtypes_.size()) fail("unsupported dtype");
        kernel = reinterpret_cast<Kernel>(from_part(dtypes_[i].part, schema_));
      } catch (...) {
        free(stack);
        throw;
      }
      known_[i].store(kernel, std::memory_order_release);
    }
    kernel(stack, arguments, returns);
  }

 private:
  // Arguments belong to the kernel; without one they would leak.
  void free(const uint64_t* stack) const {
    const auto free_one = [](char kind, uint64_t value) {
      if (kind == 't') aoti_torch_delete_tensor_object(reinterpret_cast<void*>(value));
      if (kind == 'l') torch_delete_list(reinterpret_cast<void*>(value));
    };
    for (size_t i = 0; kinds_[i] != '\0'; ++i) {
      if (kinds_[i] == 't' || kinds_[i] == 'l') free_one(kinds_[i], stack[i]);
      if (kinds_[i] != 'T' && kinds_[i] != 'L' && kinds_[i] != 'o') continue;
      const auto* const value = reinterpret_cast<const uint64_t*>(stack[i]);
      if (value == nullptr) continue;
      free_one(kinds_[i] == 'T' ? 't' : kinds_[i] == 'L' ? 'l' : 's', *value);
      delete value;
    }
  }

  const char *schema_, *kinds_;
  std::span<const Dtype> dtypes_;
  std::atomic<Kernel> known_[4] = {};
};

}  // namespace opforge

// OPFORGE_IMPL defines it; hidden, so that the linker misses it if no source does.
#define OPFORGE_KERNEL(symbol)                                  \
  extern "C" __attribute__((visibility("hidden"))) void symbol( \
      uint64_t* stack, uint64_t arguments, uint64_t returns);

#define OPFORGE_UNIT_OF_THIS_LIBRARY(name) \
  extern "C" __attribute__((visibility("hidden"))) const char opforge_unit_##name;

// What other parts find in this one.
#define OPFORGE_EXPORT(...)                                                                \
  extern "C" __attribute__((visibility("default"))) void* opforge_find(const char* name) { \
    struct {                                                                               \
      const char* name;                                                                    \
      void* address;                                                                       \
    } const known[] = {__VA_ARGS__};                                                       \
    for (const auto& one : known)                                                          \
      if (opforge::same(one.name, name)) return one.address;                               \
    return nullptr;                                                                        \
  }

#define OPFORGE_LOADER(stem)                                                                     \
  extern "C" __attribute__((visibility("default"))) void opforge_set_loader(opforge::Loader l) { \
    opforge::loader = l;                                                                         \
  }                                                                                              \
  void* opforge::from_part(const char* part, const char* name) {                                 \
    return find_part(stem, part, name);                                                          \
  }
