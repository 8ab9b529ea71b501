// SPDX-License-Identifier: Apache-2.0
// A Python extension module of an op's kernels, for build systems that make one of its sources.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <span>

namespace opforge {

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
