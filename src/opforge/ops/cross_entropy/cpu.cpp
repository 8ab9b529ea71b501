// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/math.h>
#include <opforge/cpu/rows_host.h>

#include <limits>
#include <vector>

#include "host.h"

namespace opforge {

template <class T>
constexpr compute_t<T> kLowest = -std::numeric_limits<compute_t<T>>::infinity();

// n lanes; those after them change neither a largest element nor a sum of exp().
template <class T>
OPFORGE_INLINE vec<T> load_or_lowest(const T* p, int64_t n) {
  compute_t<T> lanes[kLanes<T>];
  for (int64_t i = 0; i < kLanes<T>; ++i) lanes[i] = i < n ? widen(p[i]) : kLowest<T>;
  return load(lanes);
}

// The larger of two, lane by lane; `most` where v is NaN.
OPFORGE_INLINE vec<float> larger(vec<float> v, vec<float> most) {
#if defined(__AVX__)  // gcc 12 compares and blends, in three times as long a chain
  return _mm256_max_ps(v, most);
#else
  return v > most ? v : most;
#endif
}
OPFORGE_INLINE vec<double> larger(vec<double> v, vec<double> most) { return v > most ? v : most; }

// Calls visit(vector) for n elements, the last of them by load_or_lowest.
template <class T, class Visit>
OPFORGE_INLINE void each_vector(const T* x, int64_t n, const Visit& visit) {
  int64_t j = 0;
  for (; j + kLanes<T> <= n; j += kLanes<T>) visit(load(x + j));
  if (j < n) visit(load_or_lowest(x + j, n - j));
}

template <class T>
struct ExpSum {
  compute_t<T> peak = kLowest<T>;
  double sum = 0, above_pivot = 0;  // above_pivot: the sum of x - pivot
};

// Takes the row in pieces. Each is read twice: for its largest element, then, from the cache, for
// the exponentials.
template <class T>
static ExpSum<T> exp_sum(const T* x, int64_t cols, bool smooth, compute_t<T> pivot) {
  using A = compute_t<T>;
  constexpr int64_t piece = 1024;
  ExpSum<T> total;
  for (int64_t begin = 0; begin < cols; begin += piece) {
    const int64_t n = std::min(piece, cols - begin);
    vec<T> most = kLowest<T> - vec<T>{};
    each_vector(x + begin, n, [&](vec<T> v) { most = larger(v, most); });
    A top = most[0];
    for (int i = 1; i < kLanes<T>; ++i) top = std::max<A>(top, most[i]);
    if (top > total.peak) {
      total.sum *= std::exp(double(total.peak) - double(top));
      total.peak = top;
    }
    const A from = total.peak == kLowest<T> ? A(0) : total.peak;  // exp(-inf - 0) is 0
    vec<T> sum = {};
    each_vector(x + begin, n, [&](vec<T> v) { sum += exp(v - from); });
    for (int i = 0; i < kLanes<T>; ++i) total.sum += double(sum[i]);
    if (!smooth) continue;
    vec<T> above = {};
    int64_t j = 0;
    for (; j + kLanes<T> <= n; j += kLanes<T>) above += load(x + begin + j) - pivot;
    for (int i = 0; i < kLanes<T>; ++i) total.above_pivot += double(above[i]);
    for (; j < n; ++j) total.above_pivot += double(widen(x[begin + j]) - pivot);
  }
  return total;
}

template <class T>
struct RowResult {
  compute_t<T> loss, peak, log_sum;
};

template <class T>
static RowResult<T> row_loss(const CrossEntropyOptions& o, const T* x, int64_t cols,
                             int64_t label) {
  using A = compute_t<T>;
  if (label == o.ignore_index) return {A(0), A(0), A(0)};
  if (label < 0 || label >= cols) return {A(NAN), A(NAN), A(NAN)};
  const bool smooth = o.smoothing != 0;
  A pivot = widen(x[0]);
  if (!std::isfinite(pivot)) pivot = 0;
  const ExpSum<T> total = exp_sum(x, cols, smooth, pivot);
  const double logs = std::log(total.sum), peak = double(total.peak), lse = peak + logs;
  double loss = (peak - double(widen(x[label]))) + logs;
  if (smooth) {
    const double others = (peak - double(pivot)) - total.above_pivot / double(cols) + logs;
    loss = (1 - o.smoothing) * loss + o.smoothing * others;
  }
  if (o.z_loss != 0) loss += o.z_loss * lse * lse;
  return {A(loss), total.peak, A(logs)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> cross_entropy_cpu(const Tensor& logits,
                                                             const Tensor& target,
                                                             int64_t ignore_index, double smoothing,
                                                             double z_loss, int64_t reduction,
                                                             bool) {
  const CrossEntropyOptions options{ignore_index, smoothing, z_loss, Reduction(reduction)};
  options.check(logits, target);
  const bool reduced = options.reduction != Reduction::none;
  const bool averaged = options.reduction == Reduction::mean;
  const CrossEntropyResult out(logits, target, options.reduction);
  const int64_t rows = target.numel(), cols = logits.size(logits.dim() - 1);
  const RowsView view = as_rows(logits);
  const RowsView labels = per_row(target);
  dispatch(dtype_of(logits), [&]<class T>(Type<T>) {
    using A = compute_t<T>;
    std::vector<A> own(reduced ? size_t(rows) : 0);
    A* const losses = reduced ? own.data() : mutable_data<A>(out.loss);
    A *const peak = mutable_data<A>(out.peak), *const log_sum = mutable_data<A>(out.log_sum);
    const Rows<T> from = view.read<T>();
    const Rows<int64_t> to = labels.read<int64_t>();
    parallel_for(rows, std::max<int64_t>(1, kGrain / cols), [&](int64_t row, int64_t end) {
      RowsFrom<T> x(from, row);
      RowsFrom<int64_t> label(to, row);
      for (; row < end; ++row, x.next(), label.next()) {
        const RowResult<T> r = row_loss(options, x.row(), cols, *label.row());
        losses[row] = r.loss;
        peak[row] = r.peak;
        log_sum[row] = r.log_sum;
      }
    });
    if (!reduced) return;
    double sum = 0;
    int64_t count = 0;
    RowsFrom<int64_t> label(to, 0);
    for (int64_t row = 0; row < rows; ++row, label.next()) {
      sum += double(losses[row]);
      count += *label.row() != ignore_index;
    }
    if (averaged) *mutable_data<int64_t>(out.count) = count;
    *mutable_data<A>(out.loss) = A(averaged ? sum / double(count) : sum);
  });
  return {out.loss, out.peak, out.log_sum, out.count};
}

// grad · (softmax · (1 + 2 z lse) - smoothed one hot); `out` may be `x`.
template <class T>
static void row_gradient(const CrossEntropyOptions& o, const T* x, int64_t cols, int64_t label,
                         compute_t<T> grad, compute_t<T> peak, compute_t<T> log_sum, T* out) {
  using A = compute_t<T>;
  if (label == o.ignore_index) {
    std::fill_n(out, cols, narrow<T>(A(0)));
    return;
  }
  const A factor = grad * (A(1) + A(2 * o.z_loss) * (peak + log_sum));
  // Subtracted from every element, and from the label's.
  const A class_share = A(o.smoothing) / A(cols), label_share = A(1 - o.smoothing);
  const A less = grad * class_share, less_hot = grad * (class_share + label_share);
  const bool exists = label >= 0 && label < cols;
  const A at_label = exists ? widen(x[label]) : A(0);
  const auto gradient = [&](vec<T> v, A subtracted) {
    return fma(factor - vec<T>{}, exp((v - peak) - log_sum), -subtracted - vec<T>{});
  };
  int64_t j = 0;
  for (; j + kLanes<T> <= cols; j += kLanes<T>) store(out + j, gradient(load(x + j), less));
  if (j < cols) store_some(out + j, 1, cols - j, gradient(load_some(x + j, 1, cols - j), less));
  if (exists) out[label] = narrow<T>(gradient(at_label - vec<T>{}, less_hot)[0]);
}

Tensor cross_entropy_backward_cpu(const Tensor& grad_loss, const Tensor& logits,
                                  const Tensor& target, const Tensor& peak, const Tensor& log_sum,
                                  const Tensor& count, int64_t ignore_index, double smoothing,
                                  double z_loss, int64_t reduction, bool overwrite) {
  const CrossEntropyOptions options{ignore_index, smoothing, z_loss, Reduction(reduction)};
  const CrossEntropySaved saved(options, grad_loss, logits, target, peak, log_sum, count);
  const RowsView view = as_rows(logits);
  const int64_t rows = target.numel(), cols = logits.size(logits.dim() - 1);
  const bool over = overwrite && rows_are_apart(view.leading, cols) &&
                    view.tensor.const_data_ptr() == logits.const_data_ptr();
  const Tensor grad = over ? logits : empty(sizes(logits), logits);
  if (logits.numel() == 0) return grad;
  dispatch(dtype_of(logits), [&]<class T>(Type<T>) {
    using A = compute_t<T>;
    const A *const peaks = data<A>(saved.peak), *const logs = data<A>(saved.log_sum);
    const Rows<A> grads = saved.grad.read<A>();
    const Rows<int64_t> labels = saved.target.read<int64_t>();
    const A count = options.reduction == Reduction::mean ? A(*data<int64_t>(saved.count)) : A(1);
    T* const out = mutable_data<T>(grad);
    if (!over) prefer_huge_pages(out, logits.numel() * int64_t(sizeof(T)));
    const Rows<T> from = view.read<T>();
    parallel_for(rows, std::max<int64_t>(1, kGrain / cols), [&](int64_t row, int64_t end) {
      RowsFrom<T> x(from, row);
      RowsFrom<int64_t> label(labels, row);
      RowsFrom<A> grad_loss(grads, row);
      for (; row < end; ++row, x.next(), label.next(), grad_loss.next()) {
        T* const to = over ? out + (x.row() - from.data) : out + row * cols;
        row_gradient(options, x.row(), cols, *label.row(), *grad_loss.row() / count, peaks[row],
                     logs[row], to);
      }
    });
  });
  return grad;
}

OPFORGE_IMPL(cross_entropy, cross_entropy_cpu)
OPFORGE_IMPL(cross_entropy_backward, cross_entropy_backward_cpu)

}  // namespace opforge
