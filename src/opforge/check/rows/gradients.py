# SPDX-License-Identifier: Apache-2.0
"""Rows about gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError

from opforge.check import explain
from opforge.check.row import Fault, NotApplicable, Trial, row
from opforge.check.situation import Situation
from opforge.op import as_tuple, is_float
from opforge.truth import cases, inputs

_FEW = 80  # elements of a case that is differentiated numerically


def _differentiable(t: Trial, found: Iterable[Situation]) -> list[Situation]:
    found = [s for s in found if s.has_gradient()]
    if not found:
        raise NotApplicable("it has no gradient")
    return found


@row(
    8,
    "narrow-gradient",
    "c s g",
    "After torch.cat, the gradient of the op's output is a slice of a wider tensor. A kernel that "
    "reads it as contiguous reads elements of other gradients.",
    star=True,
)
def narrow_gradient(t: Trial) -> None:
    """The gradient of the output is a view into wider rows, or transposed."""
    for s in _differentiable(t, t.own()):
        t.trying(s).backward(inputs.narrow_gradient)
        s.backward(inputs.transposed_gradient)


@row(
    9,
    "expanded-gradient",
    "c s g",
    "The gradient of .sum() is a single number with stride 0. A kernel that reads it as "
    "contiguous reads past it.",
    star=True,
)
def expanded_gradient(t: Trial) -> None:
    """The gradient of the output is one value, expanded."""
    for s in _differentiable(t, t.own()):
        t.trying(s).backward(inputs.expanded_gradient)


@row(
    10,
    "missing-gradient",
    "c s g",
    "A loss may use only one of several outputs. The gradients of the others are then undefined, "
    "which is no error.",
)
def missing_gradient(t: Trial) -> None:
    """Each output in turn has a gradient; those of the others are undefined."""
    for s in _differentiable(t, t.own()):
        outputs = [o for o in as_tuple(_reference(s)) if o.requires_grad]
        if len(outputs) < 2:
            raise NotApplicable("it has one differentiable output")
        for chosen in range(len(outputs)):
            turn = iter(range(len(outputs)))

            def grads_for(o: torch.Tensor) -> torch.Tensor | None:
                is_it = next(turn) == chosen  # noqa: B023
                return inputs.random_gradient(o, t.seed) if is_it else None

            t.trying(s).last = ""
            cases.check_backward(t.op, cases.as_leaves(s.case), grads_for, t.place)


def _reference(s: Situation) -> Any:
    assert s.op.reference is not None
    return s.op.reference(*cases.as_leaves(s.case))


@row(
    27,
    "changed-before-backward",
    "c s g",
    "If a tensor is changed in place after the forward, autograd must raise its version error, or "
    "the gradient must stay right.",
)
def changed_before_backward(t: Trial) -> None:
    """Each input, and each output, is changed between forward and backward."""
    for s in _differentiable(t, t.kinds()):
        if s.elements < 2:
            continue
        outputs = as_tuple(_reference(s))
        names = [r.name for r, o in zip(t.op.outputs, outputs, strict=True) if o.requires_grad]
        names += s.floats
        right = cases.check_backward(
            t.op, cases.as_leaves(s.case), lambda o: inputs.random_gradient(o, t.seed), t.place
        )
        for name in names:
            copies = s
            for n in s.floats:
                copies = copies.change(n, inputs.contiguous_copy)
            t.trying(copies)
            got = _gradients_after_a_change(copies, name)
            if got is None:
                continue
            for a, b in zip([g for g in got if g is not None], right, strict=True):
                if not torch.equal(a.nan_to_num(), b.nan_to_num()):
                    raise Fault(
                        f"{name} was changed in place between forward and backward, and the "
                        "gradient changed silently; save it with ctx.save_for_backward (ask for it "
                        "as a parameter of the backward), which detects the change"
                    )


def _gradients_after_a_change(s: Situation, name: str) -> Any:
    """The gradients, or None if autograd noticed the change."""
    case = cases.as_leaves(s.case)
    with s.place():
        outputs = as_tuple(s.op(*case))
        by_name = dict(zip(s.values, case, strict=True))
        by_name |= {r.name: o for r, o in zip(s.op.outputs, outputs, strict=True)}
        wanted = [o for o in outputs if o.requires_grad]
        grads = [inputs.random_gradient(o, s.seed) for o in wanted]
        try:
            with torch.no_grad():
                by_name[name].mul_(-3).add_(1)
            return torch.autograd.grad(wanted, cases.differentiable(case), grads, allow_unused=True)
        except RuntimeError as error:
            if "inplace" in str(error):  # a version error, or a view that must not be written to
                return None
            raise


@row(
    35,
    "gradients",
    "c s g",
    "gradcheck must pass in float64, and the kernel's gradients must be near the truth in every "
    "dtype.",
    star=True,
)
def gradients(t: Trial) -> None:
    """Compare small cases with numerical derivatives, and all cases with the truth."""
    for s in _differentiable(t, t.own(*t.every_dtype)):
        t.trying(s).backward()
    # In a frozen layer, gradients must not depend on whether another one is wanted.
    for s in _differentiable(t, t.kinds(t.dtypes[0])):
        for i in _with_gradient(s) if len(s.floats) > 1 else ():
            t.trying(s).backward(only=i)
    if torch.float64 not in t.op.dtypes:
        t.note = "no float64 kernel: gradients against truth only"
        return
    small = [s for s in t.own(torch.float64) if 0 < s.elements <= _FEW and s.has_gradient()]
    for s in small:
        _gradcheck(t, t.trying(s), torch.autograd.gradcheck)
    if not small:
        t.note = f"no case of at most {_FEW} elements for gradcheck: gradients against truth only"


def _with_gradient(s: Situation) -> list[int]:
    """The positions of the arguments that the reference is differentiable in."""
    assert s.op.reference is not None
    found = []
    for i, value in enumerate(s.case):
        if is_float(value):
            outputs = as_tuple(s.op.reference(*cases.as_leaves(s.case, i)))
            found += [i] if any(o.requires_grad for o in outputs) else []
    return found


def _gradcheck(t: Trial, s: Situation, check: Any) -> None:
    names = [list(s.values)[i] for i in _with_gradient(s)]
    leaves = {n: s.tensors[n].detach().clone().requires_grad_() for n in names}
    s.last = f"with place(): torch.autograd.{check.__name__}(op, checks.as_leaves(case))"

    def run(*tensors: torch.Tensor) -> Any:
        with t.place():
            outputs = t.op(*{**s.values, **dict(zip(leaves, tensors, strict=True))}.values())
        return tuple(o for o in as_tuple(outputs) if o.requires_grad)

    try:
        with t.place():
            check(run, tuple(leaves.values()), nondet_tol=0.0)
    except GradcheckError as error:
        raise Fault(explain.gradcheck(str(error))) from None


@row(
    36,
    "double-backward",
    "c g",
    "Gradient penalties differentiate the backward. The second derivative must be right, or "
    "refused.",
)
def double_backward(t: Trial) -> None:
    """gradgradcheck for small cases in float64, the truth for the others; or the op refuses."""
    tried = 0
    for s in t.own(*t.dtypes):
        if not s.elements or not s.has_gradient():
            continue
        small = s.dtype == torch.float64 and s.elements <= _FEW
        try:
            if small:
                _gradcheck(t, t.trying(s), torch.autograd.gradgradcheck)
            else:
                _second_order(t, t.trying(s))
        except NotImplementedError as error:
            if "not supported for" not in str(error):
                raise
            t.note = f"refused: {error}"
            return
        tried += 1
    if not tried:
        raise NotApplicable("it has no gradient")


def _second_order(t: Trial, s: Situation) -> None:
    """Compare the gradients of gradients with those of the reference in float64.

    The op differentiates its backward's formula, which may round in other places.
    """
    assert t.op.reference is not None
    reference, case = t.op.reference, cases.as_leaves(s.case)
    wanted = cases.differentiated(t.op, case)

    def penalty(run: Any, values: cases.Case) -> cases.Results:
        """The gradients of a weighted sum of the gradients that autograd computes for ``run``."""
        outputs = [o for o, w in zip(as_tuple(run(*values)), wanted, strict=True) if w]
        grads = [g.to(o).detach().requires_grad_() for g, o in zip(drawn, outputs, strict=True)]
        leaves = cases.differentiable(values)
        first = torch.autograd.grad(outputs, leaves, grads, create_graph=True, allow_unused=True)
        return second(values, grads, first)

    def by_formula(values: cases.Case) -> cases.Results:
        """The same, with the gradients by the backward's formula."""
        returned = t.op.returned(*values)
        outputs = [o for o, w in zip(returned, wanted, strict=False) if w]
        grads = [g.to(o).detach().requires_grad_() for g, o in zip(drawn, outputs, strict=True)]
        given = iter(grads)
        incoming = [next(given) if w else None for w in wanted]
        incoming += [None] * (len(returned) - len(wanted))
        first = t.op._gradient.by(t.op.gradient_formula, values, returned, incoming)
        return second(values, grads, first)

    def second(
        values: cases.Case, grads: list[torch.Tensor], first: cases.Results
    ) -> cases.Results:
        leaves = cases.differentiable(values)
        pairs = [
            (g, w.to(g))
            for g, w in zip(first, weights, strict=True)
            if g is not None and g.requires_grad
        ]
        if not pairs:
            return [None] * (len(leaves) + len(grads))
        return torch.autograd.grad(
            [g for g, _ in pairs], [*leaves, *grads], [w for _, w in pairs], allow_unused=True
        )

    # The same numbers for the truth as for the op: of the dtypes of the case.
    with torch.no_grad():
        made = as_tuple(reference(*case))
    drawn = [inputs.random_gradient(o, t.seed) for o, w in zip(made, wanted, strict=True) if w]
    weights = [inputs.random_gradient(x, t.seed + 1) for x in cases.differentiable(case)]
    with t.place():
        got = penalty(t.op, cases.cast(case))
    names = [n for n, v in s.values.items() if is_float(v)]
    names += [f"grad_{r.name}" for r, w in zip(t.op.outputs, wanted, strict=True) if w]
    names = [f"second derivative by {n} of {t.op.name}" for n in names]
    truth = cases.Truth(
        t.op,
        case,
        names,
        lambda values: penalty(reference, values),
        also=None if t.op.backward is None else by_formula,
    )
    truth.check(got)
