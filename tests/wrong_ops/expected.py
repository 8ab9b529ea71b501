# SPDX-License-Identifier: Apache-2.0
"""The row of `opforge check` that must reject each wrong op, where, and what it must say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    row: str
    said: str  # a regular expression
    place: str = "cpu"


EXPECTED = {
    "assumes_alignment": Fault("offset", "bad-address: thread", "sim"),
    "assumes_contiguous": Fault("strides", "96 of 102 elements are wrong.* strides"),
    "assumes_zeroed_memory": Fault(
        "poisoned-memory", "the result depends on old values in fresh memory"
    ),
    "autocast_to_unsupported": Fault("autocast", "x has dtype torch.float16; supported: float32"),
    "bias_gradient_of_batch": Fault("gradients", "grad_bias of .* elements are wrong, everywhere"),
    "bias_gradient_of_square": Fault(
        "gradients", r"grad_bias of .* everywhere.*x float32 \(8, 8\)"
    ),
    "block_beyond_bounds": Fault(
        "launch-limits", r"kernel row_max is launched with 1024 threads .*_bounds__\(512\)", "sim"
    ),
    "changes_its_input": Fault("inputs-unchanged", "the op changed x"),
    "changes_the_gradient": Fault("inputs-unchanged", "the op changed the gradient of the output"),
    "changes_the_saved_tensor": Fault("inputs-unchanged", "the op changed the output"),
    "compiled_differs": Fault("compile", "grad_x of compiled_differs: error"),
    "crashes_when_empty": Fault("empty", "process that ran the kernel is gone: ended by SIGSEGV"),
    "default_stream": Fault("side-stream", r"stream: kernel .* pass `current_stream\(x\)`", "sim"),
    "detached_in_backward": Fault("double-backward", "second derivative by x .* the op has none"),
    "double_through_float": Fault("own-cases", "error .*e-0.* where .*e-1.* x float64"),
    "dropout_masks_differ": Fault("dropout", "grad_x of dropout_masks_differ: error"),
    "dropout_of_everything": Fault("dropout", "NaN or Inf where PyTorch has none.* p 1"),
    "dtype_not_promised": Fault("opcheck", "dtype of the kernel's output differs"),
    "dtype_reinterpreted": Fault(
        "unsupported-dtype", "tensors of torch.int32: accepted without an"
    ),
    "dtypes_mixed_up": Fault("mixed-dtypes", "a in torch.float16: accepted without an error"),
    "empty_batch_gradient": Fault("empty", "grad_bias of .* NaN or Inf where PyTorch has none"),
    "eps_unchecked": Fault("eps", "eps = -1.0: accepted without an error"),
    "error_without_shapes": Fault("mismatched-shapes", "the message does not say x, "),
    "expanded_gradient_misread": Fault("expanded-gradient", "grad_x of expanded_gradient_misread"),
    "fake_reads_values": Fault("opcheck", "data-dependent"),
    "frozen_input_stops_bias": Fault("gradients", "the reference has one, the op has none"),
    "half_gradient_without_factor": Fault("gradients", "grad_x of .*with x (bfloat16|float16)"),
    "ignores_offset": Fault("offset", "only in the last 101 elements .* offset 1"),
    "int_column_stride": Fault("far-apart", "process that ran the kernel is gone|are wrong"),
    "int_offset": Fault("far-apart", "the process that ran the kernel is gone|elements are wrong"),
    "int_offset_in_gradient": Fault(
        "far-apart", "the process that ran the kernel is gone|elements are wrong"
    ),
    "int_offset_on_gpu": Fault("far-apart", "bad-address: thread .* strides .2147483648", "sim"),
    "int_size": Fault("narrowing", r"cpu\.cpp:11: int64_t becomes int\n.*or cast it explicitly"),
    "int_size_on_gpu": Fault("narrowing", r"cuda\.cu:1\d: int64_t becomes int\n", "sim"),
    "keeps_a_reference": Fault("changed-before-backward", "x was changed in place .* silently"),
    "label_clamped": Fault("label-out-of-range", "label with a value of .*: accepted without an"),
    "masked_row_is_nan": Fault("masked-rows", "NaN or Inf where PyTorch has none.* only in row 0"),
    "minus_zero_lost": Fault("special-values", "the sign of zero is lost at"),
    "missing_gradient_shortcut": Fault("missing-gradient", "grad_x of .* everywhere"),
    "missing_tail": Fault("odd-sizes", "only in the last 3 columns|elements are wrong"),
    "naive_variance": Fault("cancellation", "naive_variance: error"),
    "nan_swallowed": Fault("one-nan", "got 0.0, PyTorch has nan"),
    "narrow_gradient_misread": Fault("narrow-gradient", "grad_x of narrow_gradient_misread: error"),
    "negative_index": Fault("label-out-of-range", "process that ran the kernel is gone|NaN or Inf"),
    "no_device_guard": Fault("other-device", "device-guard: kernel .* put `const DeviceGu", "sim"),
    "not_pointwise": Fault("vmap", "vmap differs bitwise from a loop"),
    "option_ignored_in_gradient": Fault("gradients", "grad_x of .* everywhere"),
    "order_dependent_gradient": Fault("repeats", "differs bitwise from the first", "sim"),
    "race_in_shared_memory": Fault("sanitizer", "race: thread .* reads shared memory", "sim"),
    "reads_before_the_start": Fault(
        "guard-pages", "reads 1 element before the start of x, which spans 64 elements of 4 bytes"
    ),
    "reads_before_the_start_on_gpu": Fault(
        "guard-pages",
        r"thread \(0,0,0\) of block \(0,0,0\) reads 1 element before the start of x, "
        r".*at kernel.cuh:14 in doubled",
        "sim",
    ),
    "reads_past_its_workspace": Fault(
        "guard-pages", "the op reads right past the end of 256 bytes that the op allocated"
    ),
    "reads_past_its_workspace_on_gpu": Fault(
        "guard-pages",
        r"thread \(63,0,0\) of block \(0,0,0\) reads right past the end of 256 bytes that the op "
        r"allocated.*at kernel.cuh:18 in doubled",
        "sim",
    ),
    "reads_past_the_end": Fault(
        "guard-pages", "reads 1 element past the end of x, which spans 64 elements of 4 bytes"
    ),
    "reads_past_the_end_on_gpu": Fault(
        "guard-pages",
        r"thread \(63,0,0\) of block \(0,0,0\) reads 1 element past the end of x, "
        r".*at kernel.cuh:14 in doubled",
        "sim",
    ),
    "restores_its_input": Fault("guard-pages", "read-only: the op writes to x .element 0 of 64 in"),
    "restores_its_input_on_gpu": Fault(
        "guard-pages",
        r"read-only: thread \(0,0,0\) of block \(0,0,0\) writes to x \(element 0 of 64 in memory\)"
        r".*at kernel.cuh:14 in negate",
        "sim",
    ),
    "returns_its_input": Fault("aliasing", "the output shares memory with x"),
    "row_as_one_block": Fault("long-row", r"error .* x float32 \(.*100003,?\)", "sim"),
    "rows_in_grid_y": Fault("many-rows", r"grid \(1, \d+, 1\).* cudaErrorInvalidValue", "sim"),
    "scalar_error_says_nothing": Fault("scalars", "invalid argument"),
    "scalar_in_float": Fault("own-cases", "error .*e-.* where .*e-1.* x float64"),
    "second_output_ignored": Fault("missing-gradient", "an output is detached from autograd"),
    "shapes_unchecked": Fault("mismatched-shapes", "x of shape .*: accepted without an error"),
    "sign_from_output": Fault("gradients", "grad_x of sign_from_output: error"),
    "softmax_without_max": Fault("cancellation", "NaN or Inf where PyTorch has none"),
    "square_in_half": Fault(
        "special-values", "NaN or Inf where PyTorch has none|error .* x b?float16"
    ),
    "stale_scalar": Fault("own-cases", "elements are wrong, everywhere"),
    "stochastic_rounding": Fault("repeats", "differs bitwise from the first.*bfloat16"),
    "strided_weight_misread": Fault("strided-parameters", "elements are wrong.* strides"),
    "strides_not_promised": Fault("opcheck", "strides of the kernel's output differ"),
    "subnormals_flushed": Fault("special-values", r"error .*e-4\d where .*e-4\d is allowed"),
    "sums_in_half": Fault("long-row", r"sums_in_half: error .*x b?float16"),
    "synchronises": Fault("side-stream", r"synchronises: cudaDeviceSynchronize\(\) makes", "sim"),
    "tanh_overflows": Fault("special-values", "got nan, PyTorch has -?1.0"),
    "writes_past_the_end": Fault(
        "guard-pages", "the op writes right past the end of 256 bytes that the op allocated"
    ),
    "writes_past_the_end_on_gpu": Fault(
        "guard-pages",
        r"thread \(0,0,0\) of block \(1,0,0\) writes right past the end of 256 bytes that the op "
        r"allocated.*at kernel.cuh:14 in clear",
        "sim",
    ),
    "zero_stride_as_one": Fault("expanded", "elements are wrong"),
    "backward_reference_wrong": Fault(
        "backward-reference", "reference is not the derivative of the reference: grad_x of"
    ),
    "batched_gradient_mixed": Fault("vmap", "vmap of the gradient differs bitwise from a loop"),
    "frozen_bias_strided_input": Fault("pairs", "grad_x of frozen_bias_strided_input: error"),
    "keeps_every_result": Fault("steady-memory", "calls leak .* MiB of memory, .* is never freed"),
    "large_backward_detached": Fault("double-backward", "second derivative by x"),
    "mask_repeats": Fault("randomness", "keeps 0.8750 of 131072 elements"),
    "module_forgets_option": Fault("module-is-the-op", "the module differs bitwise from the op"),
    "nan_gradient_cleaned": Fault("gradient-values", "grad_x of .* PyTorch has nan"),
    "one_output_buffer": Fault("calls-apart", "a later call changed the result of an earlier one"),
    "one_scratch_buffer": Fault(
        "two-threads", "with another thread running, the call differs bitwise"
    ),
    "prints": Fault("steady-memory", "writes to standard output .* 'forward of"),
    "public_function_swapped": Fault("public-function", "was given scale=2.0, the op got 0.5"),
    "scale_of_zero": Fault("numbers", "scale_of_zero: error .* scale 0.0"),
    "statistic_doubled": Fault("statistics", "length of statistic_doubled: error"),
    "tiny_inputs_flushed": Fault("ranges", "tiny_inputs_flushed: error"),
    "variance_of_many_rows": Fault(
        "long-row", r"error .* x float32 \(.*, 16392\), multiprocessors 1", "sim"
    ),
    "wrong_for_five_dims": Fault("ranks", "wrong_for_five_dims: error"),
    "wrong_for_three_threads": Fault("thread-counts", "got 0, truth"),
}
