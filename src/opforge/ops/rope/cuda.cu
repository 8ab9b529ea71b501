// SPDX-License-Identifier: Apache-2.0
#include "heads.h"
#include "kernel.cuh"

namespace opforge {

template <class T>
static RopeSide<T> side(const Heads& in, const Tensor& out) {
  return {data<T>(in.tensor), mutable_data<T>(out), in.batch_stride,
          in.token_stride,    in.head_stride,       int(in.heads)};
}

template <class T>
static bool takes_vectors(const RopeSide<T>& s) {
  return misalignment(s.in) == 0 && misalignment(s.out) == 0 && s.batch_stride % kVec<T> == 0 &&
         s.token_stride % kVec<T> == 0 && s.head_stride % kVec<T> == 0;
}

template <class T, class C, class Index>
static void launch_rotation(const Rope& r, const Tensor& q_out, const Tensor& k_out, Pairs pairs,
                            Rotation rotation, cudaStream_t stream) {
  RopeParams<T, C, Index> p;
  p.q = side<T>(r.q, q_out);
  p.k = r.k ? side<T>(*r.k, k_out) : RopeSide<T>{};
  p.cos = data<C>(r.cos);
  p.sin = data<C>(r.sin);
  p.cos_stride = r.cos.stride(0);
  p.sin_stride = r.sin.stride(0);
  p.table_rows = r.cos.size(0);
  p.half = int(r.half());
  p.dim = int(r.q.dim);
  p.positions = r.position_data();
  p.position_batch_stride = r.position_batch_stride;
  p.position_token_stride = r.position_token_stride;
  p.interleaved = pairs == Pairs::interleaved;
  p.inverse = rotation == Rotation::inverse;
  const Tuning chosen = tuning;
  constexpr int step = std::min(kVec<T>, kVec<C>);  // what read_table() loads at once
  const bool tables = misalignment(p.cos) == 0 && misalignment(p.sin) == 0 &&
                      p.cos_stride % step == 0 && p.sin_stride % step == 0;
  const bool vectors = chosen.vec != 1 && tables && takes_vectors(p.q) && takes_vectors(p.k) &&
                       p.dim % kVec<T> == 0 && p.half % kVec<T> == 0;
  const int64_t width = vectors ? kVec<T> : 1;
  // Of a head: half / width that rotate, and (dim - 2 half) / width that copy.
  const int64_t slots = (p.dim - p.half) / width, heads = r.q.heads + r.key_heads();
  const int64_t count = r.tokens() * heads * slots;
  p.slots = Divider<Index>(slots);
  p.heads = Divider<Index>(heads);
  p.seq = Divider<Index>(r.q.seq);
  p.count = Index(count);
  // unreached: chosen.block is 0 unless opforge.launch_config sets it
  const int block = chosen.block ? std::min(chosen.block, kMaxRopeBlock) : 256;
  launch(vectors ? rotate_slots<kVec<T>, T, C, Index> : rotate_slots<1, T, C, Index>,
         {dim3(unsigned(ceil_div(count, block))), dim3(block), stream}, p);
}

static std::tuple<Tensor, Tensor> rotate(const Tensor& q, const std::optional<Tensor>& k,
                                         const Tensor& cos, const Tensor& sin,
                                         const std::optional<Tensor>& positions, bool interleaved,
                                         Rotation rotation) {
  const DeviceGuard guard(q.get_device_index());
  const Rope r = as_rope(q, k, cos, sin, positions);
  const Pairs pairs = pairs_of(interleaved);
  const int64_t none = 0;
  const Tensor q_out = empty(sizes(q), q);
  const Tensor k_out = k ? empty(sizes(*k), q) : empty({&none, 1}, q);
  const int64_t elements = r.tokens() * (r.q.heads + r.key_heads()) * r.q.dim;
  if (elements == 0) return {q_out, k_out};
  OPFORGE_CHECK(r.q.heads + r.key_heads() <= INT32_MAX / 2 && r.q.dim <= INT32_MAX / 2,
                "rope: more heads, or elements of a head, than 2^30");
  dispatch(dtype_of(q), [&]<class T>(Type<T>) {
    const auto with_table = [&]<class C>(Type<C>) {
      // Slots are no more than elements. Threads of the last block index past the last slot, so
      // stay well below the 2^31 of a 32-bit Divider.
      if (elements < (int64_t(1) << 31) - (1 << 20)) {
        launch_rotation<T, C, uint32_t>(r, q_out, k_out, pairs, rotation, current_stream(q));
      } else {
        launch_rotation<T, C, uint64_t>(r, q_out, k_out, pairs, rotation, current_stream(q));
      }
    };
    dtype_code(cos) == dtype_code(q) ? with_table(Type<T>{}) : with_table(Type<float>{});
  });
  return {q_out, k_out};
}

std::tuple<Tensor, Tensor> rope_cuda(const Tensor& q, const std::optional<Tensor>& k,
                                     const Tensor& cos, const Tensor& sin,
                                     const std::optional<Tensor>& positions, bool interleaved) {
  return rotate(q, k, cos, sin, positions, interleaved, Rotation::forward);
}

std::tuple<Tensor, Tensor> rope_backward_cuda(const Tensor& grad_q, const Tensor& grad_k,
                                              const Tensor& cos, const Tensor& sin,
                                              const std::optional<Tensor>& positions,
                                              bool interleaved) {
  return rotate(grad_q, grad_k.dim() == 1 ? std::nullopt : std::optional(grad_k), cos, sin,
                positions, interleaved, Rotation::inverse);
}

OPFORGE_IMPL(rope, rope_cuda)
OPFORGE_IMPL(rope_backward, rope_backward_cuda)

}  // namespace opforge
