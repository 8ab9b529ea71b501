// SPDX-License-Identifier: Apache-2.0
#include <opforge/host/rows.h>

#include "host.h"
#include "kernel.cuh"

namespace opforge {

std::tuple<Tensor, Tensor, Tensor, Tensor> cross_entropy_cuda(const Tensor& logits,
                                                              const Tensor& target,
                                                              int64_t ignore_index,
                                                              double smoothing, double z_loss,
                                                              int64_t reduction, bool) {
  const CrossEntropyOptions options{ignore_index, smoothing, z_loss, Reduction(reduction)};
  options.check(logits, target);
  const bool reduced = options.reduction != Reduction::none;
  const bool averaged = options.reduction == Reduction::mean;
  const DeviceGuard guard(logits.get_device_index());
  const CrossEntropyResult out(logits, target, options.reduction);
  const int64_t rows = target.numel(), cols = logits.size(logits.dim() - 1);
  if (rows == 0 && !reduced) return {out.loss, out.peak, out.log_sum, out.count};
  const RowsView view = as_rows(logits);
  const RowsView labels = per_row(target);
  const cudaStream_t stream = current_stream(logits);
  const int64_t blocks = total_blocks(rows), int64s = 1 + blocks;
  const int32_t wide = accumulator_dtype(logits);
  const Tensor losses = reduced ? empty(sizes(target), wide, logits) : out.loss;
  const Tensor parts = empty({&blocks, 1}, wide, logits);
  const Tensor counts = empty({&int64s, 1}, aoti_torch_dtype_int64(), logits);
  // After a count for each block.
  unsigned* const arrived = reinterpret_cast<unsigned*>(mutable_data<int64_t>(counts) + blocks);
  dispatch(dtype_of(logits), [&]<class T>(Type<T>) {
    using A = compute_t<T>;
    CrossEntropyForward<T> p;
    if (rows > 0) p.logits = view.read<T>();
    p.labels = {rows > 0 ? labels.read<int64_t>() : Rows<const int64_t>{}, ignore_index, cols};
    p.smoothing = A(smoothing);
    p.z_loss = A(z_loss);
    p.losses = mutable_data<A>(losses);
    p.peak = mutable_data<A>(out.peak);
    p.log_sum = mutable_data<A>(out.log_sum);
    p.arrived = arrived;
    const bool whole =
        misalignment(data<T>(view.tensor)) == 0 && view.steps_by(kVec<T>) && cols % kVec<T> == 0;
    if (rows > 0) launch_losses(rows, cols, !whole, p, stream);
    if (!reduced) return;
    const LossTotal<A> total{p.losses,
                             p.labels,
                             rows,
                             mutable_data<A>(parts),
                             mutable_data<A>(out.loss),
                             mutable_data<int64_t>(counts),
                             averaged ? mutable_data<int64_t>(out.count) : nullptr,
                             arrived};
    launch(cross_entropy_total<A>,
           {dim3(unsigned(blocks)), dim3(total_threads(rows)), stream, 0, rows > 0}, total);
  });
  return {out.loss, out.peak, out.log_sum, out.count};
}

Tensor cross_entropy_backward_cuda(const Tensor& grad_loss, const Tensor& logits,
                                   const Tensor& target, const Tensor& peak, const Tensor& log_sum,
                                   const Tensor& count, int64_t ignore_index, double smoothing,
                                   double z_loss, int64_t reduction, bool overwrite) {
  const CrossEntropyOptions options{ignore_index, smoothing, z_loss, Reduction(reduction)};
  const DeviceGuard guard(logits.get_device_index());
  const CrossEntropySaved saved(options, grad_loss, logits, target, peak, log_sum, count);
  const RowsView from = as_rows(logits);
  const int64_t cols = logits.size(logits.dim() - 1);
  const bool over = overwrite && rows_are_apart(from.leading, cols) &&
                    from.tensor.const_data_ptr() == logits.const_data_ptr();
  const Tensor grad = over ? logits : empty(sizes(logits), logits);
  if (logits.numel() == 0) return grad;
  dispatch(dtype_of(logits), [&]<class T>(Type<T>) {
    using A = compute_t<T>;
    CrossEntropyBackward<T> p;
    p.logits = from.read<T>();
    p.grad.data = mutable_data<T>(grad);
    p.grad.stride = over ? p.logits.stride : cols;
    p.grad.outer_stride = over ? p.logits.outer_stride : 0;
    p.grad.inner = p.logits.inner;
    p.labels = {saved.target.read<int64_t>(), ignore_index, cols};
    p.rows = target.numel();
    p.cols = cols;
    p.grad_loss = saved.grad.read<A>();
    p.count = options.reduction == Reduction::mean ? data<int64_t>(saved.count) : nullptr;
    p.peak = data<A>(saved.peak);
    p.log_sum = data<A>(saved.log_sum);
    p.class_share = A(smoothing / double(cols));
    p.label_share = A(1 - smoothing);
    p.z_loss = A(z_loss);
    const bool whole = misalignment(p.logits.data) == 0 && misalignment(p.grad.data) == 0 &&
                       from.steps_by(kVec<T>) && cols % kVec<T> == 0;
    launch_gradient(p, whole, current_stream(logits));
  });
  return grad;
}

OPFORGE_IMPL(cross_entropy, cross_entropy_cuda)
OPFORGE_IMPL(cross_entropy_backward, cross_entropy_backward_cuda)

}  // namespace opforge
