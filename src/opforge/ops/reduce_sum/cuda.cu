// SPDX-License-Identifier: Apache-2.0
#include "host.h"
#include "kernel.cuh"

namespace opforge {

namespace {

// The dims of x that stay and those that are summed, each merged as far as possible.
struct Split {
  Layout<1> kept, reduced;

  // The result's order is that of the kept dims; the order of summing is free.
  explicit Split(const SplitDims& dims)
      : kept(flatten_in_order(dims.kept_size, dims.kept_stride)),
        reduced(flatten<1>(dims.summed_size, {dims.summed_size}, {dims.summed_stride})) {}
  // Of a contiguous matrix, whose rows are summed.
  Split(int64_t rows, int64_t cols)
      : kept(flatten_in_order({&rows, 1}, {&cols, 1})),
        reduced(flatten_in_order({&cols, 1}, kOne)) {}

 private:
  static constexpr int64_t kOne[1] = {1};
};

template <class T, class Index>
void sum_as_rows(const Tensor& x, const Split& s, const Tensor& y, cudaStream_t stream) {
  Layout<1> runs = s.reduced;  // without its innermost, contiguous dim
  runs.rank = std::max(runs.rank - 1, 0);
  std::copy_n(s.reduced.size + 1, runs.rank, runs.size);
  std::copy_n(s.reduced.stride[0] + 1, runs.rank, runs.stride[0]);
  RowParams<T, Index> p;
  p.x = data<T>(x);
  p.outputs = y.numel();
  p.kept = Walk<Index, 1>(s.kept);
  p.runs = runs.count();
  p.run = Walk<Index, 1>(runs);
  p.length = s.reduced.count() / p.runs;
  cut_runs(p);
  const int64_t shape[2] = {p.outputs, int64_t(p.pieces.divisor)}, stride[2] = {shape[1], 1};
  if (shape[1] == 1) {
    sum_rows(p, mutable_data<T>(y), stream);
    return;
  }
  using A = compute_t<T>;
  const Tensor partial = empty(shape, accumulator_dtype(x), x);
  sum_rows(p, mutable_data<A>(partial), stream);
  RowParams<A, Index> finish;
  finish.x = data<A>(partial);
  finish.outputs = p.outputs;
  finish.kept = Walk<Index, 1>(flatten_in_order({shape, 1}, {stride, 1}));
  finish.runs = 1;
  finish.length = finish.piece = shape[1];
  finish.group = row_group<A>(shape[1]);
  sum_rows(finish, mutable_data<T>(y), stream, true);
}

template <class T>
void sum_as_columns(const Tensor& x, const Split& s, const Tensor& y, cudaStream_t stream) {
  const bool batched = s.kept.rank == 2;
  const Matrix<const T> matrix{data<T>(x), s.reduced.stride[0][0], 1};
  const ColumnReader<T> reader{matrix, batched ? s.kept.stride[0][1] : 0};
  const auto run = [&]<int N>(Width<N>) {
    const auto p =
        plan_columns<T, N>(batched ? s.kept.size[1] : 1, s.reduced.size[0], s.kept.size[0], matrix);
    const int64_t words = p.workspace();
    const Tensor partial = empty({&words, 1}, accumulator_dtype(x), x);
    sum_columns<N>(p, reader, mutable_data<compute_t<T>>(partial), mutable_data<T>(y), stream);
  };
  // Matrices of a batch must share one alignment.
  if (reader.batch_stride % (2 * kVec<T>) == 0) {
    with_vectors<T>({matrix}, run);
  } else {
    run(Width<1>{});
  }
}

template <class T, class Index>
void sum_as_elements(const Tensor& x, const Split& s, const Tensor& y, cudaStream_t stream) {
  const int64_t length = s.reduced.count();
  // Lanes side by side should read side by side: down the reduced dims, or across the outputs.
  const bool across = s.kept.rank > 0 && s.kept.stride[0][0] == 1;
  int group = across ? 1 : 32;
  while (group < 256 && group * 64 < length) group *= 2;
  sum_elements<T, Index>(
      {data<T>(x), y.numel(), length, Walk<Index, 1>(s.kept), Walk<Index, 1>(s.reduced), group},
      mutable_data<T>(y), stream);
}

void sum(const Tensor& x, const Split& s, const Tensor& y) {
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    const cudaStream_t stream = current_stream(x);
    // Short runs of several would leave most threads idle.
    const bool contiguous_run =
        s.reduced.rank == 0 ||
        (s.reduced.stride[0][0] == 1 && (s.reduced.rank == 1 || s.reduced.size[0] >= 16 * kVec<T>));
    // A batch of low matrices would leave most threads of its blocks idle.
    const bool low = s.kept.rank == 2 && (s.kept.size[1] > 65535 || s.reduced.size[0] < 64);
    const bool contiguous_kept = s.reduced.rank == 1 && s.kept.rank >= 1 && s.kept.rank <= 2 &&
                                 s.kept.stride[0][0] == 1 && !low;
    const bool small = x.numel() < (int64_t(1) << 31);
    if (contiguous_run) {
      (small ? sum_as_rows<T, uint32_t> : sum_as_rows<T, uint64_t>)(x, s, y, stream);
    } else if (contiguous_kept) {
      sum_as_columns<T>(x, s, y, stream);
    } else {
      (small ? sum_as_elements<T, uint32_t> : sum_as_elements<T, uint64_t>)(x, s, y, stream);
    }
  });
}

}  // namespace

Tensor reduce_sum_cuda(const Tensor& x, const std::optional<std::vector<int64_t>>& dim,
                       bool keepdim) {
  const DeviceGuard guard(x.get_device_index());
  const uint64_t summed = named_dims(x.dim(), dim);
  const SplitDims dims = split_dims(x, summed, keepdim);
  const Tensor y = empty(dims.shape, x);
  if (y.numel() == 0) return y;
  if (x.numel() == 0) {
    fill_zero(y);
    return y;
  }
  const Split s(dims);
  if (s.kept.fits && s.reduced.fits) {
    sum(x, s, y);
  } else {
    sum(kept_dims_first(x, summed), Split(y.numel(), x.numel() / y.numel()), y);
  }
  return y;
}

OPFORGE_IMPL(reduce_sum, reduce_sum_cuda)

}  // namespace opforge
