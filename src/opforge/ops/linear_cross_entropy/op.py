# SPDX-License-Identifier: Apache-2.0
"""linear_cross_entropy: cross entropy of ``input @ weight.T + bias``, without holding all logits.

The rows are processed in chunks. For each chunk it computes the logits and the loss. If the loss is
reduced, it also computes the gradients of input and weight at once, except for the factor that the
backward brings. So each logit is computed once and none is kept. The products are torch's, and the
rest is cross_entropy's.

Memory of one step in MiB, beyond its inputs, for 8192 rows, 4096 features and 128256 classes in
bfloat16, where all logits take 2004 (measured by benchmarks/memory.py):

    float32 sum of the weight's gradients 2004, gradient of input 64, logits of 1664 rows 407: 2475
    low_memory: bfloat16 sum              1002,                   64, logits of  640 rows 157: 1223
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import opforge
from opforge import discover
from opforge.op import Backward, Make, Op
from opforge.ops.families.losses import (
    MEAN,
    NONE,
    REDUCTIONS,
    SUM,
    Reduction,
    Wanted,
    check_labels,
    code_of,
    in_chunks,
    in_reach,
    refuse_probabilities,
    rows_of_chunk,
    validate_options,
)
from opforge.ops.families.norms import no_tensor, wide_dtype


@functools.cache
def _rows() -> Op:
    """The op cross_entropy, which processes the rows."""
    return discover.find("cross_entropy")


def reference(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    reduction: int,
    pieces: int,
    low_memory: bool,
    wanted: int,
) -> Tensor:
    """Compute all logits and their cross entropy.

    With ``low_memory``, each chunk has its own product, so that the gradient of weight is rounded
    to its dtype once per chunk.
    """
    cross_entropy = _rows().reference
    assert cross_entropy is not None
    rows, w = in_reach(input), in_reach(weight)
    size = rows_of_chunk(input, weight.shape[0], pieces, low_memory)
    chunks = rows.split(size) if low_memory else [rows]
    logits = torch.cat([functional.linear(x, w, bias) for x in chunks])
    loss: Tensor = cross_entropy(
        logits, target, ignore_index, label_smoothing, z_loss, reduction, False
    )
    return loss


def backward_reference(
    grad_loss: Tensor,
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    d_input: Tensor,
    d_weight: Tensor,
    d_bias: Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    reduction: int,
    pieces: int,
    low_memory: bool,
    needs_input: bool,
    needs_weight: bool,
    needs_bias: bool,
    may_overwrite: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients through the cross entropy and the product."""
    backward = _rows().backward
    assert isinstance(backward, Backward)
    logits = functional.linear(in_reach(input), in_reach(weight), bias)
    options = ignore_index, label_smoothing, z_loss, reduction, False
    nothing = no_tensor(input)
    d = backward.reference(grad_loss, logits, target, nothing, nothing, nothing, *options)
    return (
        d @ in_reach(weight) if needs_input else nothing,
        d.t() @ in_reach(input) if needs_weight else nothing,
        d.sum(0) if needs_bias else nothing,
    )


def unscaled(
    which: Wanted,
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    reduction: int,
    wanted: int,
    **options: Any,
) -> Tensor:
    """The gradient of one input, if wanted, without the factor that the backward brings."""
    wide = wide_dtype(input)
    dtype = {Wanted.INPUT: input.dtype, Wanted.WEIGHT: _kept_dtype(input), Wanted.BIAS: wide}[which]
    if not wanted & which or reduction == NONE:
        return no_tensor(input).to(dtype)
    constant = None if bias is None else bias.detach()
    how = SUM if _mean_is_late(input, reduction) else reduction
    one, nothing = torch.ones((), dtype=wide, device=input.device), no_tensor(input)
    results = backward_reference(
        *(one, input.detach(), weight.detach(), target, constant, nothing, nothing, nothing),
        reduction=how,
        needs_input=which == Wanted.INPUT,
        needs_weight=which == Wanted.WEIGHT,
        needs_bias=which == Wanted.BIAS,
        may_overwrite=False,
        **options,
    )
    return results[(Wanted.INPUT, Wanted.WEIGHT, Wanted.BIAS).index(which)].to(dtype)


def composed(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    reduction: int,
    pieces: int,
    low_memory: bool,
    wanted: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss and its wanted gradients, without the factor that the backward brings."""
    if reduction == NONE:
        wanted = 0  # the backward brings a factor for each row
    factor = torch.ones((), dtype=wide_dtype(input), device=input.device)
    count = (target != ignore_index).sum() if reduction == MEAN else None
    if count is not None and not _mean_is_late(input, reduction):
        factor = factor / count.clamp(min=1)  # without any rows, all gradients are 0
    loss, d_input, d_weight, d_bias = in_chunks(
        *(input, weight, target, bias),
        options=(ignore_index, label_smoothing, z_loss),
        pieces=pieces,
        low_memory=low_memory,
        wanted=wanted,
        factors=factor.expand(target.shape),
        weight_dtype=_kept_dtype(input),
    )
    if reduction != NONE:
        loss = loss.sum() if count is None else loss.sum() / count
    return loss, d_input, d_weight, d_bias


def composed_backward(
    grad_loss: Tensor,
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    d_input: Tensor,
    d_weight: Tensor,
    d_bias: Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    reduction: int,
    pieces: int,
    low_memory: bool,
    needs_input: bool,
    needs_weight: bool,
    needs_bias: bool,
    may_overwrite: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """What the forward has found, times the factor; or all of it, if there was none to find."""
    needs = needs_input, needs_weight, needs_bias
    inputs, found = (input, weight, bias), [d_input, d_weight, d_bias]
    wanted = [(d, x) for d, x, n in zip(found, inputs, needs, strict=True) if n]
    known = all(x is not None and d.shape == x.shape for d, x in wanted)
    factor = grad_loss
    if reduction == MEAN and (not known or _mean_is_late(input, reduction)):
        factor = grad_loss / (target != ignore_index).sum().clamp(min=1)
    if known:
        # Of rows that are all ignored every gradient is 0, whatever comes in.
        factor = torch.where((target != ignore_index).any(), factor, 0)
        found = [_times(d, factor, input.dtype, may_overwrite) for d in found]
    else:
        _, *found = in_chunks(
            *(input, weight, target, bias),
            options=(ignore_index, label_smoothing, z_loss),
            pieces=pieces,
            low_memory=low_memory,
            wanted=Wanted.INPUT * needs_input
            + Wanted.WEIGHT * needs_weight
            + Wanted.BIAS * needs_bias,
            factors=factor.expand(target.shape),
            weight_dtype=input.dtype,
        )
    nothing = no_tensor(input)
    grads = (d.to(input.dtype) if n else nothing for d, n in zip(found, needs, strict=True))
    return tuple(grads)  # type: ignore[return-value]


def _times(d: Tensor, factor: Tensor, dtype: torch.dtype, overwrite: bool) -> Tensor:
    """``d * factor`` in a dtype. With ``overwrite`` it reuses the memory of ``d``, then empty."""
    in_place = overwrite and d.dtype == dtype
    result = d if in_place else torch.empty_like(d, dtype=dtype)
    factor = factor.view(
        [1] * d.dim()
    )  # a factor without dims would be rounded to the dtype of d first
    # The CPU multiplies 16-bit numbers through float32 copies, so do a sixteenth at a time.
    rows = max(1, len(d) if d.is_cuda else -(-len(d) // 16))
    for part, out in zip(d.split(rows), result.split(rows), strict=True):
        torch.mul(part, factor, out=out)
    if in_place:
        result = d.new_empty(0).set_(d)  # type: ignore[call-overload]
        d.set_()  # type: ignore[call-overload]  # no result shares memory with an argument
    return result


def _mean_is_late(input: Tensor, reduction: int) -> bool:
    """Whether the forward computes gradients of the sum, and the backward divides for the mean.

    If the forward includes 1 / rows, a backward with the factor 1 rounds nothing more. But float16
    would lose small values, so there the division comes with the scale of the loss.
    """
    return reduction == MEAN and input.dtype == torch.float16


def _kept_dtype(input: Tensor) -> torch.dtype:
    """The dtype of the saved gradient of the weight. float16 cannot hold a sum over all rows."""
    return wide_dtype(input) if input.dtype == torch.float16 else input.dtype


def validate(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    label_smoothing: float,
    z_loss: float,
    reduction: int,
    pieces: int,
    wanted: int,
) -> None:
    """Shapes and dtypes match, options are in range; the values of labels are not read here."""
    name = "opforge.linear_cross_entropy"
    validate_options("linear_cross_entropy", label_smoothing, z_loss, reduction)
    if input.dim() != 2 or weight.dim() != 2 or input.shape[1] != weight.shape[1]:
        raise ValueError(
            f"{name}: input must be (rows, features) and weight (classes, features), "
            f"got {tuple(input.shape)} and {tuple(weight.shape)}"
        )
    if weight.shape[0] == 0:
        raise ValueError(f"{name}: weight must have at least one class, got {tuple(weight.shape)}")
    if target.shape != input.shape[:1]:
        raise ValueError(
            f"{name}: target must have a label for each row of input, shape "
            f"{tuple(input.shape[:1])} where input is {tuple(input.shape)}; "
            f"got {tuple(target.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"{name}: bias must have a value for each class, shape {tuple(weight.shape[:1])} "
            f"where weight is {tuple(weight.shape)}; got {tuple(bias.shape)}"
        )
    for what, other in (("weight", weight), ("bias", bias)):
        if other is not None and other.dtype != input.dtype:
            raise TypeError(
                f"{name}: input is {input.dtype} but {what} is {other.dtype}; "
                f"convert one, as in {what}.to(input.dtype)"
            )
    if pieces < 0:
        raise ValueError(f"{name}: pieces must be a number, or 0 to choose one, got {pieces}")
    if wanted not in range(8) or (wanted & Wanted.BIAS and bias is None):
        raise ValueError(
            f"{name}: wanted must be a sum of {Wanted.INPUT:d} (input), {Wanted.WEIGHT:d} (weight) "
            f"and, if there is one, {Wanted.BIAS:d} (bias), got {wanted}"
        )


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Pieces that divide the rows or do not, all reductions, biases, ignored rows."""

    def labels(rows: int, classes: int) -> Tensor:
        generator = torch.Generator().manual_seed(make.seed)
        chosen = torch.randint(0, classes, (rows,), generator=generator)
        dropped = torch.rand(rows, generator=generator) < 0.25
        dropped[:1] = False  # the mean over no rows would be NaN
        return torch.where(dropped, -100, chosen).to(make.device)

    plain, low = (-100, 0.0, 0.0), True
    every, bias = int(Wanted.INPUT | Wanted.WEIGHT), int(Wanted.BIAS)
    yield make(6, 5), make(9, 5), labels(6, 9), None, *plain, MEAN, 4, False, every
    yield make(6, 5), make(9, 5), labels(6, 9), None, *plain, MEAN, 4, low, every
    yield make(7, 8), make(33, 8), labels(7, 33), make(33), *plain, SUM, 3, False, every | bias
    yield make(6, 16), make(40, 16), labels(6, 40), make(40), *plain, NONE, 2, low, every | bias
    yield make(5, 12), make(31, 12), labels(5, 31), None, -100, 0.1, 1e-3, MEAN, 2, False, 0
    smooth = -100, 0.2, 1e-2
    yield make(9, 24), make(70, 24), labels(9, 70), None, *smooth, SUM, 0, False, int(Wanted.INPUT)
    yield make(0, 4), make(8, 4), labels(0, 8), None, *plain, SUM, 0, False, every
    yield make(9, 20)[::2], make(20, 11).t(), labels(5, 11), None, *plain, MEAN, 2, False, every


def sized(make: Any, rows: int, cols: int) -> dict[str, tuple[Any, ...]]:
    """16 times as many classes as features. The forward computes the gradients."""
    target = torch.randint(0, 16 * cols, (rows,), device=make.device)
    inputs = make(rows, cols), make(16 * cols, cols), target, None, -100, 0.0, 0.0, MEAN, 0, False
    return {
        "loss": (*inputs, 0),
        "loss and gradients": (*inputs, int(Wanted.INPUT | Wanted.WEIGHT)),
    }


op = Op(
    schema="linear_cross_entropy(Tensor input, Tensor weight, Tensor target, Tensor? bias, "
    "int ignore_index, float label_smoothing, float z_loss, int reduction, int pieces, "
    "bool low_memory, int wanted) "
    "-> (Tensor loss, Tensor d_input, Tensor d_weight, Tensor d_bias)",
    reference=reference,
    statistics={
        "d_input": functools.partial(unscaled, Wanted.INPUT),
        "d_weight": functools.partial(unscaled, Wanted.WEIGHT),
        "d_bias": functools.partial(unscaled, Wanted.BIAS),
    },
    composed=composed,
    backward=Backward(
        "linear_cross_entropy_backward(Tensor grad_loss, Tensor input, Tensor weight, "
        "Tensor target, Tensor? bias, Tensor d_input, Tensor d_weight, Tensor d_bias, "
        "int ignore_index, float label_smoothing, float z_loss, int reduction, int pieces, "
        "bool low_memory, bool needs_input, bool needs_weight, bool needs_bias, "
        "bool may_overwrite) "
        "-> (Tensor grad_input, Tensor grad_weight, Tensor grad_bias)",
        backward_reference,
        composed=composed_backward,
    ),
    own_dtypes={"target": (torch.int64,)},
    validate=validate,
    cases=cases,
    operations=lambda input, weight, wanted: (
        (1 + bool(wanted & Wanted.INPUT) + bool(wanted & Wanted.WEIGHT))
        * (2 * input.numel() * weight.shape[0])
    ),
    sized=sized,
    product=lambda input, weight: (input, weight.t()),
    rowwise=True,
    module=lambda input, ignore_index, label_smoothing, z_loss, reduction, pieces, low_memory: (
        opforge.nn.LinearCrossEntropyLoss(
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            z_loss=z_loss,
            reduction=REDUCTIONS[reduction],
            chunk=-(-input.shape[0] // pieces) if pieces else 0,
            low_memory=low_memory,
        )
    ),
)


def linear_cross_entropy(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: Reduction = "mean",
    chunk: int = 0,
    low_memory: bool = False,
) -> Tensor:
    """``cross_entropy(linear(input, weight, bias), target)`` without holding all logits.

    If the loss is reduced, the forward also computes the gradients of inputs that require one, so
    each logit is computed once. With ``reduction="none"``, each row has its own factor, and the
    backward computes the logits again.

    The gradient of the weight is a sum over all chunks. For 16-bit inputs it is computed in float32
    and rounded once. This sum is twice as large as the weight and takes most of the memory.
    ``low_memory=True`` sums in the dtype of the weight, which takes half of that. The sum is then
    rounded once per chunk, and its error grows with the square root of the number of chunks: for
    bfloat16 and 13 chunks (8192 rows) it is 2.4 times as large. float16 keeps the float32 sum if
    the loss is reduced, because of its small range. float32 and float64 always sum in their own
    dtype.

    The forward saves the gradients for a loss whose own gradient is 1, in the dtype of input (for
    the weight and float16: in float32). The backward multiplies them with any other gradient of
    the loss, which rounds them once more.

    A backward writes the gradients over the saved ones. With ``retain_graph=True`` or under
    ``torch.compile`` it makes a copy.

    Args:
        input: (..., features).
        weight: (classes, features).
        target: (...), int64, as for :func:`opforge.cross_entropy`.
        bias: (classes,), or None.
        ignore_index: rows with this label have loss and gradient 0, and do not count for the mean.
        label_smoothing: the share of the label's weight that is spread over all classes.
        z_loss: adds ``z_loss * logsumexp(row)²`` to the loss of each row.
        reduction: "none", "sum", or "mean" over the rows not ignored.
        chunk: the largest number of rows whose logits exist at a time. 0 means a fifth of all rows
            but at most 2048 (with ``low_memory`` 640), or as many as take 4 MB. More rows make
            fewer chunks.
        low_memory: sum the gradient of the weight in its own dtype, with fewer rows at a time.
    """
    if target.is_floating_point() and weight.dim() == 2:
        logits = (*input.shape[:-1], weight.shape[0])
        refuse_probabilities("linear_cross_entropy", target, logits)
    flattened = input.dim() != 2
    if weight.dim() != 2 or input.dim() == 0 or (flattened and target.shape != input.shape[:-1]):
        raise ValueError(
            "opforge.linear_cross_entropy: input must be (..., features), weight (classes, "
            f"features) and target (...), got {tuple(input.shape)}, {tuple(weight.shape)} and "
            f"{tuple(target.shape)}"
        )
    check_labels("linear_cross_entropy", target, weight.shape[0], ignore_index)
    how = code_of("linear_cross_entropy", reduction)
    if torch.is_autocast_enabled(input.device.type) and input.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(input.device.type)  # as in linear()
        input, weight = input.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    if not isinstance(low_memory, bool):
        raise TypeError(
            f"opforge.linear_cross_entropy: low_memory must be True or False, got {low_memory!r}"
        )
    if chunk < 0:
        raise ValueError(
            "opforge.linear_cross_entropy: chunk must be a number of rows, or 0 to choose one, "
            f"got {chunk}"
        )
    wanted = sum(
        bit
        for bit, x in ((Wanted.INPUT, input), (Wanted.WEIGHT, weight), (Wanted.BIAS, bias))
        if x is not None and x.requires_grad and torch.is_grad_enabled()
    )
    flat, labels = input, target
    if flattened:
        flat, labels = input.reshape(-1, input.shape[-1]), target.reshape(-1)
    pieces = -(-flat.shape[0] // chunk) if chunk else 0
    options = ignore_index, label_smoothing, z_loss, how, pieces, low_memory, wanted
    loss: Tensor = op(flat, weight, labels, bias, *options)
    return loss.reshape(target.shape) if how == NONE else loss
