// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>

#include <limits>

#include "heads.h"

namespace opforge {

// cos and sin of one token, for all its heads: a value per element of the rotary part, in the order
// of the elements, so that vectors of both line up with vectors of a head.
template <class A>
struct Angles {
  std::unique_ptr<A[]> cos, sin;

  explicit Angles(int64_t rotary)
      : cos(std::make_unique<A[]>(size_t(rotary))), sin(std::make_unique<A[]>(size_t(rotary))) {}

  // A pair (a, b) becomes (a cos - b sin, b cos + a sin). The minus is stored in the sin of a.
  template <class C>
  void set(const C* c, const C* s, int64_t half, Pairs pairs, Rotation rotation) {
    const bool interleaved = pairs == Pairs::interleaved;
    const int64_t step = interleaved ? 2 : 1, other = interleaved ? 1 : half;
    for (int64_t j = 0; j < half; ++j) {
      const A sine = rotation == Rotation::inverse ? -A(widen(s[j])) : A(widen(s[j]));
      cos[j * step] = cos[j * step + other] = A(widen(c[j]));
      sin[j * step] = -sine;
      sin[j * step + other] = sine;
    }
  }

  void set_nan(int64_t rotary) {
    std::fill_n(cos.get(), rotary, std::numeric_limits<A>::quiet_NaN());
    std::fill_n(sin.get(), rotary, A(0));
  }
};

OPFORGE_INLINE vec<float> swap_in_pairs(vec<float> v) {
  return __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6);
}
OPFORGE_INLINE vec<double> swap_in_pairs(vec<double> v) {
  return __builtin_shufflevector(v, v, 1, 0, 3, 2);
}

// out[j] = in[j] cos[j] + in[partner of j] sin[j]
template <class T>
OPFORGE_INLINE void rotate_head(const T* in, T* out, const Angles<compute_t<T>>& angles,
                                int64_t half, int64_t dim, Pairs pairs) {
  constexpr int64_t lanes = kLanes<T>;
  const auto one = [&](int64_t j, int64_t partner) {
    using A = compute_t<T>;
    out[j] = narrow<T>(std::fma(widen(in[j]), angles.cos[size_t(j)],
                                A(widen(in[partner]) * angles.sin[size_t(j)])));
  };
  if (pairs == Pairs::interleaved) {
    int64_t j = 0;
    for (; j + lanes <= 2 * half; j += lanes) {
      const vec<T> x = load(in + j);
      store(out + j,
            fma(x, load(angles.cos.get() + j), swap_in_pairs(x) * load(angles.sin.get() + j)));
    }
    for (; j < 2 * half; ++j) one(j, j ^ 1);
  } else {
    int64_t j = 0;
    for (; j + lanes <= half; j += lanes) {
      const vec<T> low = load(in + j), high = load(in + half + j);
      const vec<T> cos = load(angles.cos.get() + j);
      store(out + j, fma(low, cos, high * load(angles.sin.get() + j)));
      store(out + half + j, fma(high, cos, low * load(angles.sin.get() + half + j)));
    }
    for (; j < half; ++j) {
      one(j, j + half);
      one(j + half, j);
    }
  }
  std::copy(in + 2 * half, in + dim, out + 2 * half);
}

template <class T, class C>
static void rotate_tokens(const Rope& r, const Tensor& q_out, const Tensor& k_out, Pairs pairs,
                          Rotation rotation) {
  const int64_t half = r.half(), dim = r.q.dim, rows = r.cos.size(0);
  const int64_t per_token = (r.q.heads + r.key_heads()) * dim;
  const C *const cos = data<C>(r.cos), *const sin = data<C>(r.sin);
  const int64_t* const positions = r.position_data();
  T* const outs[] = {mutable_data<T>(q_out), mutable_data<T>(k_out)};
  prefer_huge_pages(outs[0], q_out.numel() * int64_t(sizeof(T)));
  prefer_huge_pages(outs[1], k_out.numel() * int64_t(sizeof(T)));
  const int64_t grain = std::max<int64_t>(1, kGrain / per_token);
  parallel_for(r.tokens(), grain, [&](int64_t token, int64_t end) {
    Angles<compute_t<T>> angles(2 * half);
    for (; token < end; ++token) {
      const int64_t batch = token / r.q.seq, seq_index = token % r.q.seq;
      const int64_t position =
          positions == nullptr
              ? seq_index
              : positions[batch * r.position_batch_stride + seq_index * r.position_token_stride];
      if (position >= 0 && position < rows) {
        angles.set(cos + position * r.cos.stride(0), sin + position * r.sin.stride(0), half, pairs,
                   rotation);
      } else {
        angles.set_nan(2 * half);
      }
      const auto rotate_heads = [&](const Heads& h, T* out) {
        const T* in = data<T>(h.tensor) + batch * h.batch_stride + seq_index * h.token_stride;
        for (int64_t head = 0; head < h.heads; ++head) {
          rotate_head<T>(in + head * h.head_stride, out + (token * h.heads + head) * dim, angles,
                         half, dim, pairs);
        }
      };
      rotate_heads(r.q, outs[0]);
      if (r.k) rotate_heads(*r.k, outs[1]);
    }
  });
}

static std::tuple<Tensor, Tensor> rotate(const Tensor& q, const std::optional<Tensor>& k,
                                         const Tensor& cos, const Tensor& sin,
                                         const std::optional<Tensor>& positions, bool interleaved,
                                         Rotation rotation) {
  const Rope r = as_rope(q, k, cos, sin, positions);
  const Pairs pairs = pairs_of(interleaved);
  const int64_t none = 0;
  const Tensor q_out = empty(sizes(q), q);
  const Tensor k_out = k ? empty(sizes(*k), q) : empty({&none, 1}, q);
  if (r.tokens() * (r.q.heads + r.key_heads()) * r.q.dim == 0) return {q_out, k_out};
  dispatch(dtype_of(q), [&]<class T>(Type<T>) {
    dtype_code(cos) == dtype_code(q) ? rotate_tokens<T, T>(r, q_out, k_out, pairs, rotation)
                                     : rotate_tokens<T, float>(r, q_out, k_out, pairs, rotation);
  });
  return {q_out, k_out};
}

std::tuple<Tensor, Tensor> rope_cpu(const Tensor& q, const std::optional<Tensor>& k,
                                    const Tensor& cos, const Tensor& sin,
                                    const std::optional<Tensor>& positions, bool interleaved) {
  return rotate(q, k, cos, sin, positions, interleaved, Rotation::forward);
}

std::tuple<Tensor, Tensor> rope_backward_cpu(const Tensor& grad_q, const Tensor& grad_k,
                                             const Tensor& cos, const Tensor& sin,
                                             const std::optional<Tensor>& positions,
                                             bool interleaved) {
  return rotate(grad_q, grad_k.dim() == 1 ? std::nullopt : std::optional(grad_k), cos, sin,
                positions, interleaved, Rotation::inverse);
}

OPFORGE_IMPL(rope, rope_cpu)
OPFORGE_IMPL(rope_backward, rope_backward_cpu)

}  // namespace opforge
