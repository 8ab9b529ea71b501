// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

namespace {

// A number per dim, on the stack.
struct Dims {
  int64_t value[kMaxDims];
  size_t count = 0;

  void add(int64_t v) { value[count++] = v; }
  operator std::span<const int64_t>() const { return {value, count}; }
};

// x split into the dims that stay and the dims that are summed, each merged as far as possible.
struct Split {
  Dims shape;  // of the result
  Layout<1> kept, reduced;
};

Split split(const Tensor& x, uint64_t summed, bool keepdim) {
  const auto size = sizes(x), stride = strides(x);
  Split result;
  Dims kept_size, kept_stride, reduced_size, reduced_stride;
  for (size_t d = 0; d < size.size(); ++d) {
    const bool reduce = summed >> d & 1;
    (reduce ? reduced_size : kept_size).add(size[d]);
    (reduce ? reduced_stride : kept_stride).add(stride[d]);
    if (!reduce || keepdim) result.shape.add(reduce ? 1 : size[d]);
  }
  // The result's order is that of the kept dims; the order of summing is free.
  result.kept = flatten_in_order(kept_size, kept_stride);
  result.reduced = flatten<1>(reduced_size, {reduced_size}, {reduced_stride});
  return result;
}

// A copy in which the dims that stay come before those that are summed, seen as rows of a matrix.
Tensor sort_dims(const Tensor& x, uint64_t summed, int64_t outputs, Split& s) {
  std::vector<int64_t> order;
  for (const uint64_t wanted : {0, 1}) {
    for (int64_t d = 0; d < x.dim(); ++d) {
      if ((summed >> d & 1) == wanted) order.push_back(d);
    }
  }
  const int64_t shape[2] = {outputs, x.numel() / outputs}, stride[2] = {shape[1], 1};
  s.kept = flatten_in_order({shape, 1}, {stride, 1});
  s.reduced = flatten_in_order({shape + 1, 1}, {stride + 1, 1});
  return contiguous(permute(x, order));
}

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
  Split s = split(x, summed, keepdim);
  const Tensor y = empty(s.shape, x);
  if (y.numel() == 0) return y;
  if (x.numel() == 0) {
    fill_zero(y);
  } else if (s.kept.fits && s.reduced.fits) {
    sum(x, s, y);
  } else {
    const Tensor sorted = sort_dims(x, summed, y.numel(), s);
    sum(sorted, s, y);
  }
  return y;
}

OPFORGE_IMPL(reduce_sum, reduce_sum_cuda)

}  // namespace opforge
