// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu_elementwise.h>
#include <opforge/cpu_rng.h>
#include <opforge/host.h>

namespace opforge {

template <class T>
struct CpuDropout {
  uint64_t seed;
  uint32_t threshold;
  vec<T> scale;

  struct Row {
    const CpuDropout& drop;
    RandomWords<kRowElements> random;
    const uint32_t* words;

    Row(const CpuDropout& drop, int64_t first, int64_t n)
        : drop(drop), words(random.draw(drop.seed, uint64_t(first), n)) {}

    OPFORGE_INLINE vec<T> operator()(int64_t i, vec<T> x) const {
      return where_kept(words + i, drop.threshold, x * drop.scale);
    }
  };

  Row row(int64_t first, int64_t n) const { return Row(*this, first, n); }
};

// Forward and backward alike: the gradient is dropped where x was.
Tensor dropout_cpu(const Tensor& x, const Tensor& seed, double p) {
  OPFORGE_CHECK(seed.numel() == 1 && dtype_code(seed) == aoti_torch_dtype_int64(),
                "dropout: seed must be one int64");
  OPFORGE_CHECK(p >= 0 && p <= 1, "dropout: p must be from 0 to 1");
  const Tensor y = empty(sizes(x), x);
  over_elements(
      y,
      [&](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          const CpuDropout<T> drop{uint64_t(*data<int64_t>(seed)), drop_threshold(p),
                                   compute_t<T>(kept_scale(p)) - vec<T>{}};
          elementwise(layout, mutable_data<T>(y), {data<T>(x)}, drop);
        });
      },
      x);
  return y;
}

OPFORGE_IMPL(dropout, dropout_cpu)
OPFORGE_IMPL(dropout_backward, dropout_cpu)

}  // namespace opforge
