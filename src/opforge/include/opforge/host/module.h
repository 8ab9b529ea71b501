// SPDX-License-Identifier: Apache-2.0
// A Python extension module of an op's kernels, for build systems that make one of its sources. It
// defines the op's schemas for torch itself, in a namespace of its own, and needs no opforge.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <opforge/host/registration.h>

extern "C" {
int32_t aoti_torch_library_init_fragment(const char* ns, const char* file, uint32_t line,
                                         void** library);
int32_t aoti_torch_library_def(void* library, const char* schema);
}

namespace opforge {

// Schemas of torch for as long as the library is loaded, with the overloads that Registration
// wants.
class Definition {
 public:
  Definition(const char* ns, std::span<const char* const> schemas) {
    int32_t failed = aoti_torch_library_init_fragment(ns, __FILE__, __LINE__, &library_);
    for (const char* schema : schemas) {
      const std::string text = schema;
      const size_t end = text.find('(');
      const std::string below = text.substr(0, end) + ".below_autograd" + text.substr(end);
      for (const char* one : {schema, below.c_str()})
        failed |= aoti_torch_library_def(library_, one);
      if (failed) fail("torch refuses the schema ", ns, "::", schema);
    }
  }
  ~Definition() { aoti_torch_delete_library_object(library_); }
  Definition(const Definition&) = delete;

 private:
  void* library_ = nullptr;
};

// What the module calls a schema.
struct ModuleFunction {
  const char* name;
  const char* schema;
};

// Gives the module the functions torch.ops.<ns>.<schema>.default.
inline bool add_functions(PyObject* module, const char* ns,
                          std::span<const ModuleFunction> functions) {
  PyObject* found = PyImport_ImportModule("torch");
  const auto follow = [](PyObject* from, const char* name) {
    PyObject* const next = from == nullptr ? nullptr : PyObject_GetAttrString(from, name);
    Py_XDECREF(from);
    return next;
  };
  for (const char* name : {"ops", ns}) found = follow(found, name);
  bool added = found != nullptr;
  for (const auto& [name, schema] : functions) {
    if (!added) break;
    PyObject* const function = follow(PyObject_GetAttrString(found, schema), "default");
    added = function != nullptr && PyObject_SetAttrString(module, name, function) == 0;
    Py_XDECREF(function);
  }
  Py_XDECREF(found);
  return added;
}

}  // namespace opforge

// TORCH_EXTENSION_NAME comes from torch.utils.cpp_extension.
#define OPFORGE_MODULE(ns, functions) OPFORGE_MODULE_(TORCH_EXTENSION_NAME, ns, functions)
#define OPFORGE_MODULE_(name, ns, functions) OPFORGE_MODULE__(name, ns, functions)
#define OPFORGE_MODULE__(name, ns, functions)                                              \
  PyMODINIT_FUNC PyInit_##name(void) {                                                     \
    static PyModuleDef about = {PyModuleDef_HEAD_INIT, #name, nullptr, -1, nullptr};       \
    PyObject* const module = PyModule_Create(&about);                                      \
    if (module == nullptr || opforge::add_functions(module, ns, functions)) return module; \
    Py_DECREF(module);                                                                     \
    return nullptr;                                                                        \
  }
