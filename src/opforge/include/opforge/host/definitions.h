// SPDX-License-Identifier: Apache-2.0
// For libraries that work without opforge in Python. They do what Python does elsewhere: they
// define the ops, and load kernels (`opforge build --cpp`). The functions of torch's stable ABI are
// declared here, because their header takes longer to compile than all the rest.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

extern "C" {
int32_t aoti_torch_library_init_fragment(const char* ns, const char* file, uint32_t line,
                                         void** library);
int32_t aoti_torch_library_def(void* library, const char* schema);
int32_t aoti_torch_delete_library_object(void* library);
}

namespace opforge {

// Schemas of torch for as long as the library is loaded.
class Definitions {
 public:
  Definitions(const char* ns, std::span<const char* const> schemas) {
    aoti_torch_library_init_fragment(ns, __FILE__, __LINE__, &library_);
    // Torch refuses a schema that is there already, made by Python or by another such library, and
    // changes nothing: the op keeps that definition.
    for (const char* schema : schemas) aoti_torch_library_def(library_, schema);
  }
  ~Definitions() { aoti_torch_delete_library_object(library_); }
  Definitions(const Definitions&) = delete;

 private:
  void* library_ = nullptr;
};

// Loads libraries that lie beside this one. What cannot be loaded is reported; a call of its op
// then fails with torch's own error.
inline void load_beside(std::span<const char* const> names) {
  Dl_info here;
  dladdr(reinterpret_cast<const void*>(&load_beside), &here);
  const std::string mine = here.dli_fname;
  const std::string folder = mine.substr(0, mine.rfind('/') + 1);
  for (const char* name : names)
    if (dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr)
      std::fprintf(stderr, "opforge: %s%s cannot be loaded: %s\n", folder.c_str(), name, dlerror());
}

// Kernels for a GPU need a torch with CUDA, which the program has loaded by now if it has one.
inline bool torch_has_cuda() {
  return dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD) != nullptr;
}

// Kernels for the CPU need the instructions that they were compiled with.
inline bool cpu_suffices() {
#if defined(OPFORGE_NEEDS_AVX2)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return true;
  std::fprintf(stderr, "opforge: this CPU lacks AVX2, for which the kernels were built\n");
  return false;
#else
  return true;
#endif
}

}  // namespace opforge
