# SPDX-License-Identifier: Apache-2.0
"""Compares an op with its float64 reference on one case, forward and backward."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from opforge.op import Backward, Op, as_tuple, is_float
from opforge.ops.families import philox
from opforge.truth import compare, known
from opforge.truth.expected import Case, Pick, Results, Truth, cast, differentiable, nearby
from opforge.truth.rounding import RandomRounding, random_rounding

# Re-exported, because callers and reproduction scripts use them together with the checks.
__all__ = [
    "Case",
    "Results",
    "Truth",
    "as_leaves",
    "cast",
    "check_backward",
    "check_forward",
    "differentiable",
    "differentiated",
    "gradients_and_truth",
    "one_thread",
    "outputs_and_truth",
    "to_overwrite",
    "true_gradients",
    "true_outputs",
]

Around = Callable[[], contextlib.AbstractContextManager[Any]]
GradsFor = Callable[[torch.Tensor], torch.Tensor | None]
_ROUNDED_FROM = 2  # samples without the more expensive rounding, which are enough for most results


def as_leaves(case: Case, only: int | Collection[int] | None = None) -> Case:
    """The case with its floating point tensors as leaves that require a gradient, same strides.

    ``only`` is the position of the one argument that requires a gradient, or the positions of
    several; by default all do.
    """
    wanted = range(len(case)) if only is None else (only,) if isinstance(only, int) else only
    return tuple(
        a.detach().requires_grad_(i in wanted) if is_float(a) else a for i, a in enumerate(case)
    )


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """A context in which torch uses one thread, because several rows may run at a time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def true_outputs(op: Op, case: Case) -> Truth:
    """The truth about the outputs of a case."""
    return known.truth(op, "outputs", case, (), lambda case, _: _true_outputs(op, case))


def _true_outputs(op: Op, case: Case) -> Truth:
    assert op.reference is not None
    reference = op.reference
    names = [_output_name(op, i) for i in range(len(op.outputs))]

    def picked(pick: Pick) -> Results:
        return as_tuple(reference(*_picked(case, pick)))

    return Truth(
        op,
        case,
        names,
        lambda values: as_tuple(reference(*values)),
        picked=picked if _is_aligned(op, case) else None,
    )


def _is_aligned(op: Op, case: Case) -> bool:
    """Whether each output element depends only on input elements at the same position."""
    return op.pointwise and len({v.shape for v in case if isinstance(v, torch.Tensor)}) == 1


def _picked(case: Case, pick: Pick) -> Case:
    return tuple(
        pick(v.detach()).requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) else v
        for v in case
    )


def true_gradients(op: Op, case: Case, grads: Sequence[torch.Tensor | None]) -> Truth:
    """The truth about the gradients of a case's float tensors.

    ``grads`` has a gradient for each differentiable output of the reference, or None.
    """
    return known.truth(op, "gradients", case, grads, functools.partial(_true_gradients, op))


def _true_gradients(op: Op, case: Case, grads: Results) -> Truth:
    assert op.reference is not None
    reference = op.reference
    wanted = differentiated(op, case)

    def gradients_of(values: Case) -> list[torch.Tensor | None]:
        _run_backward(_chosen(reference(*values), wanted), grads)
        return _gradients(values)

    def picked(pick: Pick) -> Results:
        values = _picked(case, pick)
        some = [g if g is None else pick(g) for g in grads]
        _run_backward(_chosen(reference(*values), wanted), some)
        return _gradients(values)

    inputs = [a.name for a, v in zip(op.forward.args, case, strict=True) if is_float(v)]
    names = [f"grad_{name} of {op.name}" for name in inputs]
    saved = _through_saved(op, case, grads, wanted)
    aligned = _is_aligned(op, case)
    return Truth(op, case, names, gradients_of, saved, picked if aligned else None)


def _through_saved(
    op: Op, case: Case, grads: Results, wanted: list[bool]
) -> Callable[[int | None], Results] | None:
    """A function that computes gradients by the backward's formula from rounded saved values.

    A composed backward starts from the saved statistics. The reference of a backward recomputes
    them, to be differentiable. In some samples every intermediate result is rounded as well: the
    textbook derivative of a norm has the error of the mean, which autograd's may not have. Returns
    None if the op has no backward of its own.
    """
    if op.backward is None:
        return None
    composed = op.backward.composed if isinstance(op.backward, Backward) else None
    formula = composed or op.gradient_formula
    case = nearby(case)
    with torch.no_grad():
        outputs = op.returned(*cast(case))
        exact = op.returned(*cast(case, torch.float64))
    device = outputs[0].device
    given = iter(g if g is None else g.to(device, torch.float64) for g in grads)
    incoming = [next(given) if w else None for w in wanted]
    incoming += [None] * (len(exact) - len(wanted))
    compute = compare.compute_dtype(outputs[: len(wanted)])

    def gradients_of(seed: int | None) -> Results:
        saved = list(exact)
        if seed is not None:
            saved = [
                random_rounding(wide, narrow.dtype, seed)
                for wide, narrow in zip(saved, outputs, strict=True)
            ]
        arguments = tuple(
            a.detach() if isinstance(a, torch.Tensor) else a for a in cast(case, torch.float64)
        )
        rounding: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if composed is None and seed is not None and seed > _ROUNDED_FROM:
            rounding = RandomRounding(compute, seed, outputs[0].dtype)
        with torch.no_grad(), rounding:
            found: Results = op._gradient.by(formula, arguments, saved, incoming)
            return found

    return gradients_of


def differentiated(op: Op, case: Case) -> list[bool]:
    """For each output, whether it is differentiable. A mask or an argmax is not."""
    assert op.reference is not None
    return [r.requires_grad for r in as_tuple(op.reference(*cast(case)))]


def outputs_and_truth(
    op: Op,
    case: Case,
    around: Around = contextlib.nullcontext,
    run: Callable[..., Any] | None = None,
) -> tuple[tuple[torch.Tensor, ...], Truth]:
    """The op's outputs for a case, and their truth.

    The op runs in the context ``around()``. ``run`` is called in place of the op, for example a
    compiled version.
    """
    with around():
        outputs = as_tuple((run or op)(*case))
    with one_thread(), philox.remembered():
        return outputs, true_outputs(op, case)


def gradients_and_truth(
    op: Op,
    case: Case,
    grads_for: GradsFor | None = None,
    around: Around = contextlib.nullcontext,
    run: Callable[..., Any] | None = None,
) -> tuple[Results, Truth]:
    """The op's gradients for a case, and their truth.

    ``grads_for`` makes the gradient of an output, or returns None for an undefined one.
    """
    make_grad = grads_for or (lambda o: torch.randn(o.shape, dtype=torch.float64).to(o))
    wanted = differentiated(op, case)
    with around():
        ours = to_overwrite(op, cast(case))
        outputs = _chosen((run or op)(*ours), wanted)
        for o in outputs:
            if not o.requires_grad:
                raise compare.Mismatch(f"{op.name}: an output is detached from autograd")
        grads = [make_grad(r.detach()) for r in outputs]
        _run_backward(outputs, grads)
    with one_thread(), philox.remembered():
        return _gradients(ours), true_gradients(op, case, grads)


def check_forward(
    op: Op,
    case: Case,
    around: Around = contextlib.nullcontext,
    errors: list[compare.Errors] | None = None,
    run: Callable[..., Any] | None = None,
    rough: bool = False,
) -> tuple[torch.Tensor, ...]:
    """Compare the op's outputs with the truth. Returns the outputs.

    ``rough`` allows a much larger error. It is for tensors that are too large to sample.
    """
    outputs, truth = outputs_and_truth(op, case, around, run)
    with one_thread(), philox.remembered():
        truth.check(outputs, errors, rough)
    return outputs


def check_backward(
    op: Op,
    case: Case,
    grads_for: GradsFor | None = None,
    around: Around = contextlib.nullcontext,
    errors: list[compare.Errors] | None = None,
    run: Callable[..., Any] | None = None,
    rough: bool = False,
) -> tuple[torch.Tensor, ...]:
    """Compare the op's gradients with the truth. Returns the gradients."""
    got, truth = gradients_and_truth(op, case, grads_for, around, run)
    with one_thread(), philox.remembered():
        truth.check(got, errors, rough)
    return tuple(g for g in got if g is not None)


def to_overwrite(op: Op, case: Case) -> Case:
    """The case with copies, in the same layout, of tensors that the backward may overwrite."""
    overwrites = op.backward.overwrites if isinstance(op.backward, Backward) else {}
    names = [a.name for a in op.forward.args]
    values = list(case)
    for name, permission in overwrites.items():
        if values[names.index(permission)]:
            old = values[names.index(name)]
            new = torch.empty(0, dtype=old.dtype, device=old.device)
            new.set_(
                old.detach().untyped_storage().clone(),
                old.storage_offset(),
                old.shape,
                old.stride(),
            )
            values[names.index(name)] = new.requires_grad_(old.requires_grad)
    return tuple(values)


def _output_name(op: Op, i: int) -> str:
    returns = op.outputs
    return op.name if len(returns) == 1 else f"{returns[i].name} of {op.name}"


def _chosen(outputs: Any, wanted: list[bool]) -> list[torch.Tensor]:
    return [o for o, w in zip(as_tuple(outputs), wanted, strict=True) if w]


def _run_backward(outputs: list[torch.Tensor], grads: Sequence[torch.Tensor | None]) -> None:
    pairs = [(o, g.to(o)) for o, g in zip(outputs, grads, strict=True) if g is not None]
    if pairs:
        torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])


def _gradients(values: Case) -> list[torch.Tensor | None]:
    return [t.grad for t in differentiable(values)]
