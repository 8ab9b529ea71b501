// SPDX-License-Identifier: Apache-2.0
// Where instrumented code comes to with every access: the compiler believes it calls the thread
// sanitizer and the undefined behaviour sanitizer, but their runtimes are not there. The code of
// those sanitizers knows no barriers and fences, and orders the blocks that a host thread executes
// one after the other.
#include <cstring>

#include "report.h"
#include "shadow.h"
#include "state.h"
#include "traffic.h"

using namespace opforge::sim;

namespace {

inline void touch(const void* pointer, size_t bytes, bool write, const void* pc) {
  if (!in_kernel || bytes == 0) return;
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  check_time(pc);
  const Worker& w = *worker;
  // A thread's own variables, the arguments of the kernel, threadIdx and its like.
  if (w.running->stack.holds(pointer) || w.own_stack.holds(pointer)) return;
  for (const Index3* index : {&threadIdx, &blockIdx, &blockDim, &gridDim}) {
    if (address - reinterpret_cast<uintptr_t>(index) < sizeof *index) return;
  }
  if (settings.traffic) traffic::access(address, bytes, write, pc);
  if (settings.race) {
    shadow::access(address, bytes, write ? shadow::Kind::write : shadow::Kind::read, pc);
  }
}

// What the undefined behaviour sanitizer tells about an access.
struct TypeMismatch {
  const char* file;
  uint32_t line, column;
  const void* type;
  unsigned char log_alignment;
  unsigned char kind;
};

void overflowed(const void* pc) {
  if (!in_kernel) return;
  report("index-overflow", name_of(*worker->running) + " overflows a signed integer", pc);
  abandon();  // what it would access now is anybody's guess
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))
#define ACCESS(bytes)                                                                              \
  EXPORT void __tsan_read##bytes(void* p) { touch(p, bytes, false, __builtin_return_address(0)); } \
  EXPORT void __tsan_write##bytes(void* p) { touch(p, bytes, true, __builtin_return_address(0)); } \
  EXPORT void __tsan_unaligned_read##bytes(void* p) {                                              \
    touch(p, bytes, false, __builtin_return_address(0));                                           \
  }                                                                                                \
  EXPORT void __tsan_unaligned_write##bytes(void* p) {                                             \
    touch(p, bytes, true, __builtin_return_address(0));                                            \
  }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
EXPORT void __tsan_read_range(void* p, size_t n) {
  touch(p, n, false, __builtin_return_address(0));
}
EXPORT void __tsan_write_range(void* p, size_t n) {
  touch(p, n, true, __builtin_return_address(0));
}
// clang++ calls the first of these by itself; for g++ the linker turns calls into the second.
#define MEMORY(name)                                                 \
  EXPORT void* name##memcpy(void* to, const void* from, size_t n) {  \
    touch(from, n, false, __builtin_return_address(0));              \
    touch(to, n, true, __builtin_return_address(0));                 \
    return std::memcpy(to, from, n);                                 \
  }                                                                  \
  EXPORT void* name##memmove(void* to, const void* from, size_t n) { \
    touch(from, n, false, __builtin_return_address(0));              \
    touch(to, n, true, __builtin_return_address(0));                 \
    return std::memmove(to, from, n);                                \
  }                                                                  \
  EXPORT void* name##memset(void* to, int value, size_t n) {         \
    touch(to, n, true, __builtin_return_address(0));                 \
    return std::memset(to, value, n);                                \
  }
MEMORY(__tsan_)
MEMORY(__wrap_)
EXPORT void __tsan_init() {}
EXPORT void __tsan_func_entry(void*) {}
EXPORT void __tsan_func_exit() {}
EXPORT void __tsan_vptr_update(void**, void*) {}
EXPORT void __tsan_vptr_read(void**) {}

// Host code in the same file counts references with atomics: plain ones will do.
#define FETCH(bits, T, change)                                             \
  EXPORT T __tsan_atomic##bits##_fetch_##change(volatile T* p, T v, int) { \
    return __atomic_fetch_##change(p, v, __ATOMIC_SEQ_CST);                \
  }
#define COMPARE(bits, T, kind)                                                                     \
  EXPORT int __tsan_atomic##bits##_compare_exchange_##kind(volatile T* p, T* expected, T v, int,   \
                                                           int) {                                  \
    return __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }
#define ATOMIC(bits, T)                                              \
  EXPORT T __tsan_atomic##bits##_load(const volatile T* p, int) {    \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                     \
  }                                                                  \
  EXPORT void __tsan_atomic##bits##_store(volatile T* p, T v, int) { \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                        \
  }                                                                  \
  EXPORT T __tsan_atomic##bits##_exchange(volatile T* p, T v, int) { \
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);              \
  }                                                                  \
  FETCH(bits, T, add)                                                \
  FETCH(bits, T, sub)                                                \
  FETCH(bits, T, and)                                                \
  FETCH(bits, T, or)                                                 \
  FETCH(bits, T, xor)                                                \
  COMPARE(bits, T, strong)                                           \
  COMPARE(bits, T, weak)
ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)
EXPORT void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

EXPORT void __ubsan_handle_type_mismatch_v1(void* data, uintptr_t pointer) {
  if (!in_kernel) return;
  const auto& d = *static_cast<const TypeMismatch*>(data);
  const uintptr_t alignment = uintptr_t(1) << d.log_alignment;
  if (pointer % alignment == 0) return;  // a null pointer, or an object too small: not ours
  report("misaligned",
         name_of(*worker->running) + " accesses memory that must be aligned to " +
             std::to_string(alignment) + " bytes; the address is " +
             std::to_string(pointer % alignment) + " bytes past a multiple",
         __builtin_return_address(0));
}
EXPORT void __ubsan_handle_add_overflow(void*, void*, void*) {
  overflowed(__builtin_return_address(0));
}
EXPORT void __ubsan_handle_sub_overflow(void*, void*, void*) {
  overflowed(__builtin_return_address(0));
}
EXPORT void __ubsan_handle_mul_overflow(void*, void*, void*) {
  overflowed(__builtin_return_address(0));
}
EXPORT void __ubsan_handle_negate_overflow(void*, void*) {
  overflowed(__builtin_return_address(0));
}
EXPORT void __ubsan_handle_divrem_overflow(void*, void*, void*) {
  overflowed(__builtin_return_address(0));
}
