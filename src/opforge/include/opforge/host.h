// SPDX-License-Identifier: Apache-2.0
// The host side of a kernel on LibTorch's stable ABI: tensor checks, dispatch by dtype, allocation,
// the current stream, and registration. The only opforge header that knows torch.
#pragma once

#include <opforge/core/layout.h>
#include <opforge/core/text.h>
#include <opforge/core/types.h>
#include <opforge/core/unit.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "opforge_signatures.h"  // generated from the record by every build

#if defined(OPFORGE_SIM)
#include <opforge_sim/op.h>
#elif defined(USE_CUDA)
#include <torch/csrc/stable/accelerator.h>
#endif
#if defined(USE_CUDA)
#include <opforge/core/launch.h>
#endif

namespace opforge {

using torch::stable::Tensor;

#if !defined(OPFORGE_SIM)
// The simulator wants to know what memory an op makes and fills, and when the op runs.
namespace sim {
inline void note_new(const Tensor&) {}
inline void note_filled(const Tensor&) {}
}  // namespace sim
#define OPFORGE_ENTRY(op, function) &function
#endif

// Guards memory safety. The record's validate() gives the user the full story.
#define OPFORGE_CHECK(condition, ...) \
  do {                                \
    if (!(condition)) [[unlikely]]    \
      ::opforge::fail(__VA_ARGS__);   \
  } while (0)

inline int32_t dtype_code(const Tensor& x) {
  int32_t code = -1;
  aoti_torch_get_dtype(x.get(), &code);
  return code;
}

inline DType dtype_of(const Tensor& x) {
  static const int32_t f32 = aoti_torch_dtype_float32(), f16 = aoti_torch_dtype_float16(),
                       bf16 = aoti_torch_dtype_bfloat16(), f64 = aoti_torch_dtype_float64();
  const int32_t code = dtype_code(x);
  if (code == f32) return DType::f32;
  if (code == f16) return DType::f16;
  if (code == bf16) return DType::bf16;
  if (code == f64) return DType::f64;
  fail("unsupported dtype");
}

// Calls f with a value whose ::type is the element type: dispatch_all(d, [&]<class T>(Type<T>)
// {…}).
template <class T>
struct Type {
  using type = T;
};

template <class F>
inline decltype(auto) dispatch_all(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(Type<float>{});
    case DType::f16:
      return f(Type<half>{});
    case DType::bf16:
      return f(Type<bfloat16>{});
    default:
      return f(Type<double>{});
  }
}

// The same for the dtype of the op's first tensor: the only one where a record says by_dtype, and
// its sources are compiled once per dtype.
template <class F>
inline decltype(auto) dispatch(DType dtype, F&& f) {
#if defined(OPFORGE_DTYPE)
  constexpr DType kOnly = DType::OPFORGE_DTYPE;
  if (dtype != kOnly) fail("dispatch() got another dtype than that of the first tensor");
  if constexpr (kOnly == DType::f32) return f(Type<float>{});
  if constexpr (kOnly == DType::f16) return f(Type<half>{});
  if constexpr (kOnly == DType::bf16) return f(Type<bfloat16>{});
  if constexpr (kOnly == DType::f64) return f(Type<double>{});
#else
  return dispatch_all(dtype, f);
#endif
}

// Every size passes through here, so that arrays of kMaxDims are long enough everywhere.
inline std::span<const int64_t> sizes(const Tensor& x) {
  const auto s = x.sizes();
  OPFORGE_CHECK(s.size() <= kMaxDims, "tensors of more than ", kMaxDims, " dims are not supported");
  return {s.data(), s.size()};
}

inline std::span<const int64_t> strides(const Tensor& x) {
  const auto s = x.strides();
  return {s.data(), s.size()};
}

template <class T>
inline const T* data(const Tensor& x) {
  return static_cast<const T*>(x.const_data_ptr());
}

template <class T>
inline T* mutable_data(const Tensor& x) {
  return static_cast<T*>(x.mutable_data_ptr());
}

inline Tensor empty_strided(std::span<const int64_t> sizes, std::span<const int64_t> strides,
                            int32_t dtype, const Tensor& like) {
  int32_t device_type = 0, device_index = 0;
  aoti_torch_get_device_type(like.get(), &device_type);
  aoti_torch_get_device_index(like.get(), &device_index);
  AtenTensorHandle handle = nullptr;
  const auto code = aoti_torch_empty_strided(int64_t(sizes.size()), sizes.data(), strides.data(),
                                             dtype, device_type, device_index, &handle);
  if (code != AOTI_TORCH_SUCCESS) {
    int64_t count = 1;
    for (const int64_t n : sizes) count *= n;
    fail("opforge: out of memory allocating ", count, " elements of ",
         aoti_torch_dtype_element_size(dtype), " bytes");
  }
  const Tensor made(handle);
  sim::note_new(made);
  return made;
}

// A new contiguous tensor on the device of `like`.
inline Tensor empty(std::span<const int64_t> sizes, int32_t dtype, const Tensor& like) {
  int64_t strides[kMaxDims];
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = step;
    step *= sizes[i] > 0 ? sizes[i] : 1;
  }
  return empty_strided(sizes, {strides, sizes.size()}, dtype, like);
}

inline Tensor empty(std::span<const int64_t> sizes, const Tensor& like) {
  return empty(sizes, dtype_code(like), like);
}

// A new tensor with the strides torch.empty_like gives, as records with `like` promise.
inline Tensor empty_like(const Tensor& x) {
  if (x.is_contiguous()) return empty_strided(sizes(x), strides(x), dtype_code(x), x);
  StableIValue stack[6] = {torch::stable::detail::from(x),
                           torch::stable::detail::from(std::nullopt),
                           torch::stable::detail::from(std::nullopt),
                           torch::stable::detail::from(std::nullopt),
                           torch::stable::detail::from(std::nullopt),
                           torch::stable::detail::from(std::nullopt)};
  OPFORGE_CHECK(
      torch_call_dispatcher("aten::empty_like", "", stack, TORCH_ABI_VERSION) == AOTI_TORCH_SUCCESS,
      "opforge: out of memory allocating ", x.numel(), " elements");
  const Tensor made = torch::stable::detail::to<Tensor>(stack[0]);
  sim::note_new(made);
  return made;
}

// A contiguous copy, for the rare layout a kernel has no path for. An empty tensor is contiguous to
// torch whatever its strides; here it gets those that others have.
inline Tensor contiguous(const Tensor& x) {
  if (x.is_contiguous()) return x.numel() == 0 ? empty(sizes(x), x) : x;
  StableIValue stack[2] = {
      torch::stable::detail::from(x),
      torch::stable::detail::from(aoti_torch_memory_format_contiguous_format())};
  OPFORGE_CHECK(
      torch_call_dispatcher("aten::contiguous", "", stack, TORCH_ABI_VERSION) == AOTI_TORCH_SUCCESS,
      "opforge: out of memory copying ", x.numel(), " elements");
  return torch::stable::detail::to<Tensor>(stack[0]);
}

inline void copy_into(const Tensor& to, const Tensor& from);

// A contiguous copy in memory of its own.
inline Tensor clone(const Tensor& x) {
  const Tensor copy = empty(sizes(x), x);
  copy_into(copy, x);
  return copy;
}

inline Tensor permute(const Tensor& x, const std::vector<int64_t>& order) {
  StableIValue stack[2] = {torch::stable::detail::from(x), torch::stable::detail::from(order)};
  OPFORGE_CHECK(
      torch_call_dispatcher("aten::permute", "", stack, TORCH_ABI_VERSION) == AOTI_TORCH_SUCCESS,
      "opforge: permute failed");
  return torch::stable::detail::to<Tensor>(stack[0]);
}

// The shape two shapes broadcast to.
inline std::vector<int64_t> broadcast(std::span<const int64_t> a, std::span<const int64_t> b) {
  std::vector<int64_t> shape(std::max(a.size(), b.size()));
  for (size_t i = 1; i <= shape.size(); ++i) {
    const int64_t m = i <= a.size() ? a[a.size() - i] : 1, n = i <= b.size() ? b[b.size() - i] : 1;
    OPFORGE_CHECK(m == n || m == 1 || n == 1, "the shapes do not broadcast");
    shape[shape.size() - i] = m == 1 ? n : m;
  }
  return shape;
}

// A contiguous copy of x stretched to `shape`.
inline Tensor expand_copy(const Tensor& x, std::span<const int64_t> shape) {
  const std::vector<int64_t> list(shape.begin(), shape.end());
  StableIValue stack[3] = {torch::stable::detail::from(x), torch::stable::detail::from(list),
                           torch::stable::detail::from(false)};
  OPFORGE_CHECK(torch_call_dispatcher("aten::expand_copy", "", stack, TORCH_ABI_VERSION) ==
                    AOTI_TORCH_SUCCESS,
                "opforge: out of memory copying ", x.numel(), " elements");
  return torch::stable::detail::to<Tensor>(stack[0]);
}

inline void copy_into(const Tensor& to, const Tensor& from) {
  StableIValue stack[3] = {torch::stable::detail::from(to), torch::stable::detail::from(from),
                           torch::stable::detail::from(false)};
  OPFORGE_CHECK(
      torch_call_dispatcher("aten::copy_", "", stack, TORCH_ABI_VERSION) == AOTI_TORCH_SUCCESS,
      "opforge: copying the result failed");
  torch::stable::detail::to<Tensor>(stack[0]);  // takes the returned reference back
  sim::note_filled(to);
}

// Calls run(layout, out, in...) for an elementwise loop over `out` and the inputs broadcast to it.
// Operands too scattered for a Layout are copied first.
template <class Run, class... In>
inline void over_elements(const Tensor& out, const Run& run, const In&... in) {
  constexpr int N = 1 + sizeof...(In);
  const auto layout =
      flatten<N>(sizes(out), {sizes(out), sizes(in)...}, {strides(out), strides(in)...});
  if (layout.fits) {
    run(layout, out, in...);
    return;
  }
  const Tensor flat = empty(sizes(out), out);
  const std::array<Tensor, sizeof...(In)> copies = {expand_copy(in, sizes(out))...};
  [&]<size_t... K>(std::index_sequence<K...>) {
    const auto plain = flatten<N>(sizes(flat), {sizes(flat), sizes(copies[K])...},
                                  {strides(flat), strides(copies[K])...});
    run(plain, flat, copies[K]...);
  }(std::make_index_sequence<sizeof...(In)>{});
  copy_into(out, flat);
}

inline bool same_device(const Tensor& a, const Tensor& b) {
  int32_t ta = 0, tb = 0;
  aoti_torch_get_device_type(a.get(), &ta);
  aoti_torch_get_device_type(b.get(), &tb);
  return ta == tb && a.get_device_index() == b.get_device_index();
}

inline bool same_shape(const Tensor& a, const Tensor& b) {
  const auto sa = sizes(a), sb = sizes(b);
  return std::equal(sa.begin(), sa.end(), sb.begin(), sb.end());
}

// Runs body(begin, end) over [0, n) on torch's own threads, at least `grain` indices to a thread.
template <class F>
inline void parallel_for(int64_t n, int64_t grain, const F& body) {
  if (n <= grain) {
    if (n > 0) body(int64_t(0), n);
    return;
  }
  const auto code = torch_parallel_for(
      0, n, grain,
      [](int64_t begin, int64_t end, void* context) {
        (*static_cast<const F*>(context))(begin, end);
      },
      const_cast<void*>(static_cast<const void*>(&body)));
  OPFORGE_CHECK(code == AOTI_TORCH_SUCCESS, "opforge: a parallel loop failed");
}

inline void fill_zero(const Tensor& x) {
  OPFORGE_CHECK(aoti_torch_zero_(x.get()) == AOTI_TORCH_SUCCESS, "opforge: zero_ failed");
  sim::note_filled(x);
}

// The dtype sums of x are kept in.
inline int32_t accumulator_dtype(const Tensor& x) {
  return dtype_of(x) == DType::f64 ? aoti_torch_dtype_float64() : aoti_torch_dtype_float32();
}

// The dims a `dim` argument names, as bits; none given means all.
inline uint64_t named_dims(int64_t rank, const std::optional<std::vector<int64_t>>& dim) {
  if (!dim || dim->empty()) return ~uint64_t(0);
  const int64_t limit = std::max<int64_t>(rank, 1);
  uint64_t mask = 0;
  for (const int64_t d : *dim) {
    OPFORGE_CHECK(d >= -limit && d < limit, "dim ", d, " is out of range");
    const uint64_t bit = uint64_t(1) << (d < 0 ? d + limit : d);
    OPFORGE_CHECK((mask & bit) == 0, "dim ", d, " is named twice");
    mask |= bit;
  }
  return mask;
}

// A tensor seen as a matrix: the last dim is the columns, all others together are the rows.
struct MatrixView {
  Tensor tensor;  // the tensor itself, or a copy where its rows have no common stride
  int64_t rows = 1, cols = 1, row_stride = 0, col_stride = 1;

  template <class T>
  const T* data() const {
    return opforge::data<T>(tensor);
  }
  template <class T>
  Matrix<const T> read() const {
    return {opforge::data<T>(tensor), row_stride, col_stride};
  }
  template <class T>
  Matrix<T> write() const {
    return {mutable_data<T>(tensor), row_stride, col_stride};
  }
};

inline MatrixView as_matrix(const Tensor& x) {
  const auto size = sizes(x), stride = strides(x);
  MatrixView m{x};
  m.cols = size.back();
  m.col_stride = m.cols == 1 ? 1 : stride.back();
  for (size_t d = size.size() - 1; d-- > 0;) {
    if (size[d] == 1) continue;
    if (m.rows == 1) {
      m.row_stride = stride[d];
    } else if (m.rows > 0 && stride[d] != m.row_stride * m.rows) {
      return as_matrix(contiguous(x));
    }
    m.rows *= size[d];
  }
  return m;
}

#if defined(OPFORGE_SIM)
using sim::current_stream;
using sim::DeviceGuard;
#elif defined(USE_CUDA)
using torch::stable::accelerator::DeviceGuard;

inline cudaStream_t current_stream(const Tensor& x) {
  void* stream = nullptr;
  OPFORGE_CHECK(
      aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream) == AOTI_TORCH_SUCCESS,
      "opforge: torch has no current CUDA stream");
  return static_cast<cudaStream_t>(stream);
}
#endif

// --- registration -------------------------------------------------------------------------------

namespace detail {
template <class F>
struct Plain;
template <class R, class... A>
struct Plain<R (*)(A...)> {
  using type = R(std::remove_cvref_t<A>...);
};
}  // namespace detail

// Named so that the compiler's note about it shows both types.
template <class FromSchema, class InCpp>
struct OpforgeSignature {
  static constexpr bool agree = std::is_same_v<FromSchema, InCpp>;
};

// Defines the kernel of a schema for the generated source, which registers it with torch.
#if defined(OPFORGE_DTYPE)
#define OPFORGE_IMPL(op, function) OPFORGE_IMPL_(op, function, OPFORGE_DTYPE)
#else
#define OPFORGE_IMPL(op, function) OPFORGE_IMPL_(op, function, impl)
#endif
#define OPFORGE_IMPL_(op, function, kind) OPFORGE_IMPL__(op, function, kind)
#define OPFORGE_IMPL__(op, function, kind)                                                       \
  static_assert(                                                                                 \
      ::opforge::OpforgeSignature<::opforge::schema::op, typename ::opforge::detail::Plain<      \
                                                             decltype(&function)>::type>::agree, \
      "opforge: the record's " OPFORGE_SCHEMA_##op ", but `" #function "` is another");          \
  extern "C" __attribute__((visibility("hidden"))) void opforge_##kind##_##op(                   \
      StableIValue* stack, uint64_t arguments, uint64_t returns) {                               \
    TORCH_BOX(OPFORGE_ENTRY(op, function))(stack, arguments, returns);                           \
  }

}  // namespace opforge
