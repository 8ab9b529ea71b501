# SPDX-License-Identifier: Apache-2.0
"""cross_entropy: log-sum-exp of each row minus the logit of its label; reads the logits once.

The forward saves two numbers per row: the largest logit, and the log of the sum of exp(logit -
largest). With them, the gradient of each element takes one read and one write. Saving only their
sum, lse, would be less exact: for logits around 1000 it lacks digits that the gradient needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import opforge
from opforge.op import Backward, Make, Op
from opforge.ops.families.losses import (
    MEAN,
    NONE,
    REDUCTIONS,
    SUM,
    Reduction,
    check_labels,
    code_of,
    refuse_probabilities,
    validate_options,
)
from opforge.ops.families.norms import no_tensor, wide, wide_dtype


def reference(
    logits: Tensor,
    target: Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    reduction: int,
    overwrite: bool,
) -> Tensor:
    """PyTorch's, on float32 or float64 logits. Ignored rows do not count, even if they are NaN."""
    kept = target != ignore_index
    valid = (target >= 0) & (target < logits.shape[-1])
    v = torch.where(kept.unsqueeze(-1), wide(logits), 0)
    logs = torch.log_softmax(v, -1)
    losses = -logs.gather(-1, torch.where(valid, target, 0).unsqueeze(-1)).squeeze(-1)
    if label_smoothing:
        losses = (1 - label_smoothing) * losses - label_smoothing * logs.mean(-1)
    if z_loss:
        losses = losses + z_loss * v.logsumexp(-1).square()
    losses = torch.where(kept, losses, 0)
    losses = losses * torch.where(kept & ~valid, torch.nan, 1)  # their gradients are NaN as well
    if reduction == NONE:
        return losses
    return losses.sum() / kept.sum() if reduction == MEAN else losses.sum()


def peak(logits: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    """The largest logit of each row. 0 if the row is ignored, NaN if its label is out of range."""
    return _known(wide(logits.detach()).amax(-1), logits, target, ignore_index)


def log_sum(logits: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    """log(sum(exp(logit - peak))) of each row, with the same exceptions."""
    v = wide(logits.detach())
    away = v - v.amax(-1, keepdim=True)
    return _known(away.exp().sum(-1).log(), logits, target, ignore_index)


def count(target: Tensor, ignore_index: int, reduction: int) -> Tensor:
    """The number of rows that are not ignored, for the mean."""
    return (target != ignore_index).sum() if reduction == MEAN else no_tensor(target)


def backward_reference(
    grad_loss: Tensor,
    logits: Tensor,
    target: Tensor,
    peak: Tensor,
    log_sum: Tensor,
    count: Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    reduction: int,
    overwrite: bool,
) -> Tensor:
    """``grad * (softmax * (1 + 2 z lse) - smoothed one hot)``, and 0 in ignored rows."""
    v = wide(logits)
    kept = target != ignore_index
    lse = v.logsumexp(-1, keepdim=True)
    grad = grad_loss / kept.sum() if reduction == MEAN else grad_loss
    labels = torch.where(kept, target, 0).unsqueeze(-1)
    valid = ((target >= 0) & (target < v.shape[-1])).unsqueeze(-1)
    hot = torch.zeros_like(v).scatter(-1, torch.where(valid, labels, 0), 1 - label_smoothing)
    hot = hot + label_smoothing / v.shape[-1]
    result = grad.unsqueeze(-1) * ((v - lse).exp() * (1 + 2 * z_loss * lse) - hot)
    result = torch.where(valid, result, torch.nan)
    return torch.where(kept.unsqueeze(-1), result, 0).to(logits.dtype)


def validate(
    logits: Tensor, target: Tensor, label_smoothing: float, z_loss: float, reduction: int
) -> None:
    """Shapes match and options are in range; the values of labels are not read here."""
    validate_options("cross_entropy", label_smoothing, z_loss, reduction)
    if logits.dim() == 0 or logits.shape[-1] == 0:
        raise ValueError(
            "opforge.cross_entropy: logits must have at least one class along their last dim, "
            f"got {tuple(logits.shape)}"
        )
    if target.shape != logits.shape[:-1]:
        raise ValueError(
            f"opforge.cross_entropy: target must have a label for each row of logits, shape "
            f"{tuple(logits.shape[:-1])} where logits is {tuple(logits.shape)} with the classes "
            f"last; got {tuple(target.shape)}"
        )


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Rows around the vector width, all reductions, smoothing, z-loss, ignored rows, strides."""

    def labels(*shape: int, classes: int, ignore: int = -100) -> Tensor:
        generator = torch.Generator().manual_seed(make.seed)
        chosen = torch.randint(0, classes, shape, generator=generator)
        dropped = torch.rand(shape, generator=generator) < 0.25
        dropped.view(-1)[:1] = False  # the mean over no rows would be NaN
        return torch.where(dropped, ignore, chosen).to(make.device)

    plain = (-100, 0.0, 0.0)
    for i, (rows, classes) in enumerate([(5, 3), (7, 31), (33, 96), (6, 257), (3, 1100), (4, 1)]):
        yield make(rows, classes), labels(rows, classes=classes), *plain, i % 3, False
    yield make(2, 3, 67), labels(2, 3, classes=67), -100, 0.1, 0.0, MEAN, False
    yield make(2, 3, 72), labels(2, 3, classes=72), -100, 0.0, 1e-2, NONE, False
    yield make(9, 4, 130), labels(9, 4, classes=130, ignore=7), 7, 0.3, 1e-3, SUM, False
    yield make(19), labels(classes=19), *plain, MEAN, False
    yield make(0, 8), labels(0, classes=8), *plain, SUM, False
    yield make(9, 67)[:, 1:], labels(9, classes=66), *plain, NONE, False
    yield make(4, 6, 40)[:, :-1], labels(4, 5, classes=40), -100, 0.2, 0.0, MEAN, False
    yield make(4, 6, 24).transpose(0, 1), labels(4, 6, classes=24).t(), *plain, NONE, False
    yield make(2, 20000), labels(2, classes=20000), -100, 0.1, 1e-4, MEAN, False


def sized(make: Any, rows: int, cols: int) -> tuple[Any, ...]:
    """The mean over rows with random labels, none ignored."""
    target = torch.randint(0, cols, (rows,), device=make.device)
    return make(rows, cols), target, -100, 0.0, 0.0, MEAN, False


def eager() -> Callable[..., Tensor]:
    """PyTorch's two ops in their fastest form, without a float copy of 16-bit logits."""

    def run(
        logits: Tensor,
        target: Tensor,
        ignore_index: int,
        label_smoothing: float,
        z_loss: float,
        reduction: int,
    ) -> Any:
        if label_smoothing or z_loss:
            raise NotImplementedError("log_softmax and nll_loss alone")
        logs = torch.log_softmax(logits, -1, dtype=wide_dtype(logits)).flatten(0, -2)
        how = REDUCTIONS[reduction]
        labels = target.reshape(-1)
        return functional.nll_loss(logs, labels, ignore_index=ignore_index, reduction=how)

    return run


def quack() -> Callable[..., Tensor]:
    """Quack's CuTe DSL kernels."""
    from quack.cross_entropy import cross_entropy

    def run(
        logits: Tensor,
        target: Tensor,
        ignore_index: int,
        label_smoothing: float,
        z_loss: float,
        reduction: int,
    ) -> Any:
        if label_smoothing or z_loss:
            raise NotImplementedError("quack's cross entropy has no smoothing and no z-loss")
        how = REDUCTIONS[reduction]
        return cross_entropy(logits, target, ignore_index=ignore_index, reduction=how)

    return run


op = Op(
    schema="cross_entropy(Tensor logits, Tensor target, int ignore_index, float label_smoothing, "
    "float z_loss, int reduction, bool overwrite) "
    "-> (Tensor loss, Tensor peak, Tensor log_sum, Tensor count)",
    reference=reference,
    statistics={"peak": peak, "log_sum": log_sum, "count": count},
    backward=Backward(
        "cross_entropy_backward(Tensor grad_loss, Tensor logits, Tensor target, Tensor peak, "
        "Tensor log_sum, Tensor count, int ignore_index, float label_smoothing, float z_loss, "
        "int reduction, bool overwrite) -> Tensor grad_logits",
        backward_reference,
        overwrites={"logits": "overwrite"},
    ),
    own_dtypes={"target": (torch.int64,)},
    validate=validate,
    cases=cases,
    # Subtract the largest, exp, add.
    operations=lambda logits: 3 * logits.numel(),
    sized=sized,
    peers={"log_softmax + nll_loss": eager, "quack": quack},
    rowwise=True,
    module=lambda ignore_index, label_smoothing, z_loss, reduction: opforge.nn.CrossEntropyLoss(
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
        reduction=REDUCTIONS[reduction],
        dim=-1,
    ),
)


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: Reduction = "mean",
    overwrite_logits: bool = False,
) -> Tensor:
    """Cross entropy of ``logits``, with classes along the last dim, and the labels in ``target``.

    The loss is float32 for 16-bit logits and float64 for float64. It equals PyTorch's result for
    ``logits.float()`` or under autocast. For 16-bit logits alone, PyTorch rounds to 16 bits.

    Args:
        logits: (..., classes). Rows may have gaps, as in ``logits[:, :-1]``. They are not copied.
        target: (...), int64. A label that is neither a class nor ``ignore_index`` raises
            IndexError on the CPU. On a GPU, a check would have to wait for it. There, and when
            compiled, the loss and the gradient of this row become NaN, and
            OPFORGE_CHECK_LABELS=1 turns the check on.
        ignore_index: rows with this label have loss and gradient 0, and do not count for the mean.
        label_smoothing: the share of the label's weight that is spread over all classes.
        z_loss: adds ``z_loss * logsumexp(row)²`` to the loss of each row.
        reduction: "none", "sum", or "mean" over the rows not ignored (NaN if all are).
        overwrite_logits: allows the backward to write the gradient over ``logits``, which saves a
            tensor of that size. Use it only if nothing else needs the logits after the backward;
            autograd raises if another op has saved them. When compiled, the compiler decides
            about memory.
    """
    refuse_probabilities("cross_entropy", target, logits.shape)
    check_labels("cross_entropy", target, logits.shape[-1] if logits.dim() else 0, ignore_index)
    how = code_of("cross_entropy", reduction)
    loss: Tensor = op(logits, target, ignore_index, label_smoothing, z_loss, how, overwrite_logits)
    return loss


def _known(v: Tensor, logits: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    valid = (target >= 0) & (target < logits.shape[-1])
    return torch.where(target == ignore_index, 0, torch.where(valid, v, torch.nan))
