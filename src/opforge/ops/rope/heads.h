// SPDX-License-Identifier: Apache-2.0
// The arguments of rope as the kernels of both devices see them.
#pragma once

#include <opforge/host.h>

namespace opforge {

// (batch, seq, heads, dim), the elements of a head side by side. Batch: all dims before seq.
struct Heads {
  Tensor tensor;  // the tensor itself, or a copy where its strides do not allow that
  int64_t batches = 1, seq = 0, heads = 0, dim = 0;
  int64_t batch_stride = 0, token_stride = 0, head_stride = 0;
};

inline Heads as_heads(const Tensor& x) {
  OPFORGE_CHECK(x.dim() >= 3, "rope: tensors must be (..., seq, heads, dim)");
  const auto size = sizes(x), stride = strides(x);
  const size_t n = size.size();
  Heads h{x, 1, size[n - 3], size[n - 2], size[n - 1], 0, stride[n - 3], stride[n - 2]};
  bool fits = h.dim <= 1 || stride[n - 1] == 1;
  for (size_t d = n - 3; d-- > 0;) {  // merges the batch dims, from the innermost out
    if (size[d] == 1) continue;
    if (h.batches == 1) h.batch_stride = stride[d];
    fits = fits && stride[d] == h.batch_stride * h.batches;
    h.batches *= size[d];
  }
  if (!fits && x.numel() > 0) return as_heads(contiguous(x));
  return h;
}

// A table whose rows have their elements side by side: the tensor itself where they do.
inline Tensor as_table(const Tensor& x) {
  OPFORGE_CHECK(x.dim() == 2, "rope: cos and sin must have two dims");
  return x.size(1) <= 1 || x.stride(1) == 1 ? x : contiguous(x);
}

enum class Pairs { halves, interleaved };  // (j, j + half) or (2 j, 2 j + 1)
enum class Rotation { forward, inverse };  // inverse: by the negative angles

inline Pairs pairs_of(bool interleaved) { return interleaved ? Pairs::interleaved : Pairs::halves; }

struct Rope {
  Heads q;
  std::optional<Heads> k;
  Tensor cos, sin;
  std::optional<Tensor> positions;
  int64_t position_batch_stride = 0, position_token_stride = 0;  // 0 where they repeat

  const int64_t* position_data() const { return positions ? data<int64_t>(*positions) : nullptr; }
  int64_t key_heads() const { return k ? k->heads : 0; }
  int64_t tokens() const { return q.batches * q.seq; }
  int64_t half() const { return cos.size(1); }
};

inline Rope as_rope(const Tensor& q, const std::optional<Tensor>& k, const Tensor& cos,
                    const Tensor& sin, const std::optional<Tensor>& positions) {
  Rope r{as_heads(q), std::nullopt, as_table(cos), as_table(sin), positions};
  OPFORGE_CHECK(same_shape(cos, sin) && cos.size(0) > 0 && 2 * cos.size(1) <= r.q.dim &&
                    dtype_code(cos) == dtype_code(sin) && same_device(q, cos) &&
                    same_device(q, sin),
                "rope: cos and sin must be alike, (positions, at most dim / 2), and where q is");
  OPFORGE_CHECK(dtype_code(cos) == dtype_code(q) || dtype_code(cos) == aoti_torch_dtype_float32(),
                "rope: cos and sin must be float32 or have the dtype of q");
  const auto tokens = sizes(q).first(size_t(q.dim()) - 2);
  if (k) {
    r.k = as_heads(*k);
    const auto theirs = sizes(*k).first(size_t(k->dim()) - 2);
    OPFORGE_CHECK(std::equal(tokens.begin(), tokens.end(), theirs.begin(), theirs.end()) &&
                      r.k->dim == r.q.dim && dtype_code(*k) == dtype_code(q) && same_device(q, *k),
                  "rope: k must be like q but for the number of heads");
  }
  if (!positions) {
    OPFORGE_CHECK(r.q.seq <= cos.size(0), "rope: q has more tokens than cos has positions");
    return r;
  }
  OPFORGE_CHECK(dtype_code(*positions) == aoti_torch_dtype_int64() && same_device(q, *positions),
                "rope: positions must be int64 and where q is");
  const auto size = sizes(*positions);
  const auto shape = broadcast(size, tokens);
  OPFORGE_CHECK(std::equal(shape.begin(), shape.end(), tokens.begin(), tokens.end()),
                "rope: positions do not broadcast to the tokens of q");
  // With several batch dims, positions may not have one stride for all. A copy is small compared
  // with q.
  if (size.size() > 2 || (size.size() == 2 && q.dim() > 4)) {
    r.positions = expand_copy(*positions, tokens);
    r.position_batch_stride = r.q.seq;
    r.position_token_stride = 1;
    return r;
  }
  const auto stride = strides(*positions);
  const size_t n = size.size();
  if (n >= 1 && size[n - 1] > 1) r.position_token_stride = stride[n - 1];
  if (n == 2 && size[0] > 1) r.position_batch_stride = stride[0];
  return r;
}

}  // namespace opforge
