# SPDX-License-Identifier: Apache-2.0
"""Rows about values: NaN, infinities, signed zeros, subnormals, cancellation, masks, dropout."""

from __future__ import annotations

import torch

from opforge.check.row import Fault, NotApplicable, Trial, row
from opforge.check.situation import Situation
from opforge.op import as_tuple
from opforge.truth import cases, compare, inputs

_INF, _NAN = float("inf"), float("nan")


@row(
    15,
    "one-nan",
    "c s g",
    "One NaN must give NaN exactly where the reference has it. A swallowed NaN hides a broken "
    "model.",
    star=True,
)
def one_nan(t: Trial) -> None:
    """One NaN in each tensor in turn, forward and backward."""
    for base in t.kinds():
        for name, tensor in base.floats.items():
            if tensor.numel():
                t.demand(base.change(name, inputs.put, _NAN, seed=t.seed))


@row(
    16,
    "special-values",
    "c s g",
    "±Inf, -0.0, subnormals and overflow must give what the reference gives.",
)
def special_values(t: Trial) -> None:
    """Special values among ordinary ones; all values subnormal; all values near the largest."""
    for dtype in t.dtypes:
        if not dtype.is_floating_point:
            raise NotApplicable("it has no floating point input")
        # With several terms near the largest value, the order decides whether their sum overflows
        # and, if they cancel, what is left of it.
        ordered = t.op.rowwise
        for base in t.kinds(dtype):
            for name, tensor in base.floats.items():
                if not tensor.numel():
                    continue
                info = torch.finfo(tensor.dtype)  # it may have a dtype of its own
                for value in (_INF, -_INF, 0.0, -0.0, *(() if ordered else (info.max,))):
                    s = base.change(name, inputs.put, value, seed=t.seed, share=0.2)
                    if s.makes_sense():
                        _same_class(t, t.trying(s))
                if ordered:  # one such term, forward only: a gradient may repeat it
                    s = base.change(name, inputs.put, info.max, seed=t.seed)
                    if s.makes_sense():
                        t.trying(s).forward()
                t.demand(base.change(name, inputs.scaled, info.tiny / 8))
                if t.op.pointwise or dtype == torch.float16:
                    t.trying(base.change(name, inputs.scaled, info.max / 4)).forward()


def _same_class(t: Trial, s: Situation) -> None:
    """Demand the allowed error, and the reference's sign for zeros wherever that sign is stable."""
    assert t.op.reference is not None
    outputs = s.forward()
    if s.has_gradient():
        s.backward()
    s.last = ""
    elsewhere = tuple(v.cpu() if isinstance(v, torch.Tensor) else v for v in s.case)
    references = [
        as_tuple(t.op.reference(*case))
        for case in (s.case, cases.cast(s.case, torch.float64), elsewhere)
    ]
    for i, output in enumerate(outputs):
        if not output.is_floating_point():
            continue
        signs = torch.stack([torch.signbit(r[i].detach()).cpu() for r in references])
        zero = (output == 0).cpu() & torch.stack([(r[i] == 0).cpu() for r in references]).all(0)
        steady = signs.all(0) | ~signs.any(0)
        wrong = zero & steady & (torch.signbit(output).cpu() != signs[0])
        if bool(wrong.any()):
            where = tuple(wrong.nonzero()[0].tolist())
            right = "-0.0" if bool(signs[0][where]) else "0.0"
            raise compare.Mismatch(
                f"the sign of zero is lost at {where}: got {output[where].item()}, "
                f"the reference has {right}"
            )


@row(
    17,
    "masked-rows",
    "c s g",
    "A row of -inf is fully masked. It must not give NaN where the reference gives none.",
)
def masked_rows(t: Trial) -> None:
    """One row of each tensor is all -inf; values and gradients are the reference's."""
    if t.op.pointwise:
        raise NotApplicable("pointwise: no element depends on a row")
    for base in t.kinds():
        for name, tensor in base.floats.items():
            if tensor.dim() and tensor.numel():
                t.demand(base.change(name, inputs.fill_row, -_INF))


@row(
    18,
    "cancellation",
    "c s g",
    "If the mean is much larger than the spread, the difference of two large sums has no correct "
    "digits left.",
)
def cancellation(t: Trial) -> None:
    """Each tensor in turn is shifted by 1,000 and by 30,000, in float32 or what the op has."""
    for base in t.kinds(t.dtypes[0]):
        for name, tensor in base.floats.items():
            if tensor.numel():
                for by in (1e3, 3e4):
                    t.demand(base.change(name, inputs.shifted, by))


@row(29, "dropout", "c s g", "Forward and backward must drop the same elements.")
def dropout(t: Trial) -> None:
    """With p of 0, 0.5 and 1, the same seed drops the same elements, in the backward too."""
    names = [a.name for a in t.op.forward.args]
    if "p" not in names:
        raise NotApplicable("it has no argument p")
    for base in t.kinds():
        for p in (0.0, 0.5, 1.0):
            s = t.trying(base.set("p", p))
            if not s.makes_sense():
                continue
            s.both()
            for a, b in zip(s.results(), s.results(), strict=True):
                compare.check_same_bits(a, b, "the same seed gives a different mask")
        if "seed" in names and isinstance(base.values["seed"], int) and base.elements > 64:
            other = base.set("p", 0.5).set("seed", base.values["seed"] + 1)
            if torch.equal(as_tuple(base.set("p", 0.5).call())[0], as_tuple(other.call())[0]):
                raise Fault("another seed drops the same elements")


@row(
    0,
    "ranges",
    "c s g",
    "Random values are never small beside large ones, all equal, or sorted.",
)
def ranges(t: Trial) -> None:
    """Each tensor in turn covers the range of its dtype, is all equal, sorted, or one-hot."""
    changes = (inputs.wide_range, inputs.equal, inputs.ordered, inputs.one_hot)
    for base in t.kinds():
        for name, tensor in base.floats.items():
            for change in changes if tensor.numel() else ():
                s = base.change(name, change)
                if s.makes_sense():
                    t.trying(s).both()


@row(
    75,
    "gradient-values",
    "c s g",
    "A gradient is NaN, infinite, 0, tiny or multiplied by a loss scale sooner or later.",
    star=True,
)
def gradient_values(t: Trial) -> None:
    """NaN, ±Inf, ±0, subnormal, tiny, huge, constant and sparse gradients of the output."""
    gradients = (
        inputs.nan_gradient,
        inputs.infinite_gradient,
        inputs.zero_gradient,
        inputs.subnormal_gradient,
        inputs.tiny_gradient,
        inputs.huge_gradient,
        inputs.constant_gradient,
        inputs.sparse_gradient,
    )
    found = [s for s in t.kinds() if s.has_gradient()]
    if not found:
        raise NotApplicable("it has no gradient")
    for s in found:
        for gradient in gradients:
            t.trying(s).backward(gradient)


@row(
    0,
    "numbers",
    "c s g",
    "A kernel may have a special path for a factor of 0, 1, below 0 or NaN.",
)
def numbers(t: Trial) -> None:
    """Each number among the arguments in turn is 0, 1, -1.5, 3 and NaN; each bool is inverted."""
    kinds = {"float": (0.0, 1.0, -1.5, 3.0, _NAN), "int": (0, 1, -1, 3), "bool": (False, True)}
    tried = 0
    for base in t.kinds():
        for argument in t.op.forward.args:
            if argument.name in ("eps", "p", "seed"):  # these have rows of their own
                continue
            for value in kinds.get(argument.type.rstrip("?"), ()):
                if value == base.values[argument.name]:
                    continue
                s = base.set(argument.name, value)
                if s.makes_sense():
                    t.trying(s).both()
                    tried += 1
    if not tried:
        raise NotApplicable("it has no argument that is a number")
