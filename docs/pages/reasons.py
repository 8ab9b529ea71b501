# SPDX-License-Identifier: Apache-2.0
"""Why an op loses where it does. A loss without a reason here fails a test.

What is only likely is worded so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from opforge.op import Op
from opforge.report.series import Contest

from .data import COMPILED, largest

_MASK = (
    "The forward of torch.compile writes a mask of one byte per element, and its backward reads "
    "that in place of y; ours keeps nothing but the output, which the next layer keeps anyway."
)
_LAUNCH = "Both take a few microseconds, ours up to half a microsecond longer; not looked into yet."
_SHAPE = (
    "The kernel of torch.compile is made for this one shape; ours works out the layout while it "
    "runs, which may be why. Not measured."
)
_SECOND = (
    "Ours adds partial sums in a second launch, in a fixed order, which small tensors are the "
    "likeliest to feel. Not measured apart."
)
_ONE_ROW = (
    "Of one row there is nothing to add up, and the other kernel is a copy; ours brings what it "
    "adds through the shared memory of a block all the same. What was measured before it did so in "
    "one launch has a second one."
)
_TILE = (
    "An image of one row. A tile has a rim above and below, which is filled with what stands in "
    "for rows that are not there; a kernel made for this one shape can leave that out."
)
_SHORT_SCAN = (
    "Within 4%. A row is scanned by a warp or a part of one; two vectors to a thread, not four, "
    "were up to 3% faster at some lengths and no faster at others."
)
_ONE_DEEP = (
    "There is nothing to add up, and the other kernel is a copy; ours goes through its tiles all "
    "the same."
)
_SCAN = (
    "A block has the columns of a tile and goes down their rows: where rows begin at changing "
    "alignments it goes element by element."
)
_PIXELS = (
    "What pixel by pixel adds up to a group comes from three launches, one after the other, which "
    "small images are the likeliest to feel. Not measured apart."
)
_PLANES = (
    "Planes end within vectors here, so that each takes the weights and biases of two channels and "
    "chooses by element; likely that is why. Not measured apart."
)
# Compiled for sm_90: 144 bytes of spill stores in float64, 96 in float32, which is at the ceiling.
_REGISTERS = (
    "Not looked into yet. Our kernel for rows is held to 32 registers and spills some to memory, "
    "more in float64 than in float32. Whether that is why is not known: in float32 it rarely loses."
)
_ODD = "Rows of an odd length begin at changing alignments; not looked into yet."
_ROW = (
    "A row may have any length, alignment, parameters and options here; the other kernel is made "
    "for this one shape."
)
_ROW_SMALL = (
    "A few microseconds, of which ours spends more before the first load, on the layout of rows "
    "and on options. Not measured apart."
)
_LONG_ROW = (
    "A row too long for a cluster is cut into pieces, which two kernels go over element by "
    "element, one after the other."
)
# Compiled for sm_90, bfloat16: some 90 instructions for the mask of eight elements.
_DROPOUT = (
    "The backward makes the mask again from the seed, which together with the norm takes more "
    "instructions than a copy leaves time for; torch.compile most likely keeps the mask."
)
_IN_FORWARD = (
    "The forward makes the gradients, too, piece by piece, so that no logits are kept; eager's "
    "does not. Both passes together take 1.12 times as long as eager's here."
)
_AGAIN = (
    "Asked for the loss alone, it keeps nothing, and the backward makes the logits again, in "
    "pieces."
)


@dataclass(frozen=True)
class Loss:
    """What a reason may go by."""

    to: str
    shape: tuple[int, ...]
    size: int  # of the largest tensor, in bytes


@dataclass(frozen=True)
class Reason:
    """Holds for passes (as titles of rows name them), where ``when`` says so."""

    passes: tuple[str, ...]
    text: str
    when: Callable[[Loss], bool] = lambda loss: True


_ROW_SUMS = ("reduce_sum forward, last dim", "reduce_sum forward, all")
# The gradient of a row that was added is the sum over the first dim.
_COLUMN_SUMS = ("reduce_sum forward, first dim", "vector_add backward, a row added")
_COLUMNS = (
    *_COLUMN_SUMS,
    "scale_bias_relu backward",
    "bias_gelu backward, tanh",
    "bias_gelu backward, erf",
    "bias_dropout_residual backward",
)
_BIAS = ("scale_bias_relu forward", "vector_add forward, a row added", "bias_gelu forward, erf")
_PLAIN = ("relu forward", "relu backward", "vector_add forward, equal shapes", *_BIAS)

_NORMS = tuple(
    f"{op} {which}, {variant}"
    for op, variants in (
        ("rms_norm", ("plain", "residual")),
        ("layer_norm", ("plain", "residual", "relu")),
    )
    for which in ("forward", "backward")
    for variant in variants
)
_NORM_GRADIENTS = tuple(name for name in _NORMS if "backward" in name)
_SOFTMAX = tuple(
    f"{op} {which}, {variant}"
    for op in ("softmax", "log_softmax")
    for which in ("forward", "backward")
    for variant in ("plain", "masked")
)
_GATES = tuple(
    f"{op} {which}, {variant}"
    for op in ("swiglu", "geglu", "reglu")
    for which in ("forward", "backward")
    for variant in ("separate", "packed", "erf")
)

# The first that fits counts.
REASONS = (
    Reason(
        (*_NORM_GRADIENTS, "layer_norm backward, relu, dropout"),
        _LONG_ROW,
        lambda loss: loss.shape[-1] > 65536,
    ),
    Reason((*_NORMS, *_SOFTMAX), _ROW_SMALL, lambda loss: loss.size < 8e6),
    Reason((*_NORMS, *_SOFTMAX), _ROW),
    Reason(("layer_norm backward, relu, dropout",), _DROPOUT),
    Reason(_GATES, _LAUNCH, lambda loss: loss.size < 9e6),
    Reason(_GATES, _SHAPE, lambda loss: loss.to == COMPILED),
    Reason(("stencil2d forward, 5 points", "stencil2d forward, 9 points"), _TILE),
    Reason(("cumsum forward, last dim",), _SHORT_SCAN, lambda loss: loss.shape[-1] <= 1024),
    Reason(("cumsum forward, first dim",), _ONE_DEEP, lambda loss: loss.shape[0] == 1),
    Reason(("cumsum forward, first dim",), _SCAN),
    Reason(("group_norm forward, pixels",), _PIXELS, lambda loss: loss.size < 9e6),
    Reason(("group_norm forward, planes",), _PLANES, lambda loss: loss.shape[-1] % 8 != 0),
    Reason(("linear_cross_entropy forward, loss and gradients",), _IN_FORWARD),
    Reason(("linear_cross_entropy backward, loss",), _AGAIN),
    Reason(_COLUMNS, _ONE_ROW, lambda loss: loss.shape[0] == 1),
    Reason(_COLUMNS, _SECOND, lambda loss: loss.size < 2e6),
    Reason(_PLAIN, _LAUNCH, lambda loss: loss.size < 2e6),
    Reason(("relu backward", "scale_bias_relu backward"), _MASK, lambda loss: loss.to == COMPILED),
    Reason(_BIAS, _SHAPE, lambda loss: loss.to == COMPILED),
    Reason(_COLUMN_SUMS, _ODD, lambda loss: loss.shape[1] % 2 == 1),
    Reason((*_ROW_SUMS, *_COLUMN_SUMS), _SHAPE, lambda loss: loss.to == COMPILED),
    Reason(_ROW_SUMS, _REGISTERS),
)


def reason(contest: Contest, record: Op) -> str | None:
    """Why a workload was lost, if that is known."""
    row = contest.ours
    to = contest.other.implementation if contest.other else ""
    loss = Loss(to, row.shape, largest(record, row.variant, row.dtype, row.shape))
    return next((r.text for r in REASONS if row.title in r.passes and r.when(loss)), None)
