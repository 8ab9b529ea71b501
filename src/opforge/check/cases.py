# SPDX-License-Identifier: Apache-2.0
"""One case of an op against the float64 reference, forward and backward."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from opforge.check import compare
from opforge.op import Op, as_tuple, is_float

Case = tuple[Any, ...]
Around = Callable[[], contextlib.AbstractContextManager[Any]]
GradsFor = Callable[[torch.Tensor], torch.Tensor | None]


def differentiable(case: Case) -> list[torch.Tensor]:
    """The floating point tensors of a case."""
    return [a for a in case if is_float(a)]


def cast(case: Case, dtype: torch.dtype | None = None) -> Case:
    """A case with its floating point tensors as leaves of their own, in another dtype if given."""
    return tuple(
        a.detach().to(dtype or a.dtype).requires_grad_(a.requires_grad) if is_float(a) else a
        for a in case
    )


def as_leaves(case: Case, only: int | None = None) -> Case:
    """The case with its floating point tensors as leaves that want a gradient, strides kept.

    ``only`` is the position of the one argument that wants one; by default all do.
    """
    return tuple(
        a.detach().requires_grad_(only in (None, i)) if is_float(a) else a
        for i, a in enumerate(case)
    )


def terms(case: Case, output: torch.Tensor, rowwise: bool | Callable[..., int] = False) -> int:
    """How many terms an element of an output or gradient may add up."""
    tensors = differentiable(case)
    most = max((t.numel() for t in tensors), default=1)
    row = 1
    if callable(rowwise):
        row = rowwise(*case)
    elif rowwise:
        row = max((t.shape[-1] for t in tensors if t.dim()), default=1)
    return max(most // max(output.numel(), 1), row, 1)


def largest(tensors: list[torch.Tensor]) -> float:
    """The largest finite magnitude among the tensors."""
    found = [t.detach().nan_to_num(0, 0, 0).abs().max() for t in tensors if t.numel()]
    return max(map(float, found), default=1.0)


def size_of_terms(tensors: list[torch.Tensor], n: int) -> float:
    """How large the terms of a sum of n are: the largest, or what random signs add up to.

    On the way to a sum of random signs, partial sums are of the order of sqrt(n) terms.
    """
    count = sum(t.numel() for t in tensors)
    norms = [
        float(torch.linalg.vector_norm(t.detach().nan_to_num(0, 0, 0), dtype=torch.float64))
        for t in tensors
    ]
    rms = math.hypot(*norms) / math.sqrt(max(count, 1))
    return max(largest(tensors), math.sqrt(n) * rms)


class ShortSums(TorchFunctionMode):
    """Inside, torch.cumsum adds up blocks, and then the blocks before each.

    On a CPU it adds one by one: of equal terms many roundings have the same sign, and in float64
    the truth would be further from the exact sums than a kernel may be.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if function in (torch.cumsum, torch.Tensor.cumsum) and not kwargs:
            return _cumsum(*args)
        return function(*args, **(kwargs or {}))


def _cumsum(x: torch.Tensor, dim: int) -> torch.Tensor:
    n = x.shape[dim] if x.dim() else 0
    if n < 2:
        return torch.cumsum(x, dim)
    size = math.isqrt(n)
    rows = torch.nn.functional.pad(x.movedim(dim, -1), (0, -n % size)).unflatten(-1, (-1, size))
    inside = torch.cumsum(rows, -1)
    before = torch.cumsum(torch.nn.functional.pad(inside[..., :-1, -1], (1, 0)), -1)
    return (inside + before.unsqueeze(-1)).flatten(-2)[..., :n].movedim(-1, dim)


class Truth:
    """What results are compared with: PyTorch's in the same dtype, and those in float64."""

    def __init__(
        self,
        op: Op,
        case: Case,
        names: list[str],
        results: Callable[[Case], Sequence[torch.Tensor | None]],
        k: int,
        summands: list[torch.Tensor],
    ) -> None:
        self._op, self._case, self._names = op, case, names
        self._results, self._k, self._summands = results, k, summands
        self._torchs = results(cast(case))
        with ShortSums():
            self._exact = results(cast(case, torch.float64))
        self._spans: dict[float, list[list[torch.Tensor]]] = {}

    def check(
        self, got: Sequence[torch.Tensor | None], errors: list[compare.Errors] | None = None
    ) -> None:
        """Every result must be within the allowed error of the truth."""
        if len(got) != len(self._names):
            raise compare.Mismatch(f"{self._op.name}: {len(got)} results, not {len(self._names)}")
        for i, (what, one) in enumerate(zip(self._names, got, strict=True)):
            if not isinstance(one, torch.Tensor | None):
                raise compare.Mismatch(f"{what}: a {type(one).__name__}, not a tensor")
            theirs, right = self._torchs[i], self._exact[i]
            if one is None or theirs is None or right is None:
                _check_absent(one, theirs, what)
                continue
            n = terms(self._case, one, self._op.rowwise)
            scale = size_of_terms(self._summands, n)
            sides = functools.partial(self._sides, i)
            any_order = bool(self._op.rowwise) and what.startswith("grad_")
            found = compare.check(one, theirs, right, self._k, n, scale, what, sides, any_order)
            if errors is not None:
                errors.append(found)

    def roughly(self, got: Sequence[torch.Tensor | None]) -> bool:
        """Whether results are right but for rounding: in norm at most four times PyTorch's error.

        A rounding of the dtype may come on top, for there are ops that PyTorch does exactly.
        """
        if len(got) != len(self._names):
            return False
        for one, theirs, right in zip(got, self._torchs, self._exact, strict=True):
            if not isinstance(one, torch.Tensor | None):
                return False
            if one is None or theirs is None or right is None:
                if any(t is not None and bool(t.any()) for t in (one, theirs)):
                    return False  # one has it, the other has not
                continue
            if one.shape != theirs.shape or not one.is_floating_point():
                return False
            size = float(right.double().norm())
            ours, torchs = (float((t.double() - right).norm()) for t in (one, theirs))
            if not ours <= 4 * torchs + 2 * torch.finfo(theirs.dtype).eps * size:
                return False
        return True

    def _sides(self, i: int, roundings: float) -> list[torch.Tensor]:
        """The lowest and highest value of result ``i`` as the inputs move; kept: it takes long."""
        if roundings not in self._spans:
            spans: list[list[torch.Tensor]] = [[] for _ in self._names]
            for moved in _moved(self._case, roundings):
                with ShortSums():
                    results = self._results(moved)
                for span, value in zip(spans, results, strict=True):
                    if value is None:
                        continue
                    value = value.detach()
                    low, high = span or (value, value)
                    span[:] = [torch.minimum(low, value), torch.maximum(high, value)]
            self._spans[roundings] = spans
        return self._spans[roundings][i]


def true_outputs(op: Op, case: Case) -> Truth:
    """The truth about the outputs for a case."""
    assert op.reference is not None
    reference = op.reference
    names = [_output_name(op, i) for i in range(len(op.outputs))]
    summands = differentiable(case)
    return Truth(op, case, names, lambda values: as_tuple(reference(*values)), 2, summands)


def true_gradients(op: Op, case: Case, grads: Sequence[torch.Tensor | None]) -> Truth:
    """The truth about the gradients of a case's float tensors.

    ``grads`` has a gradient per output that the reference differentiates; None is undefined.
    """
    assert op.reference is not None
    reference = op.reference
    wanted = differentiated(op, case)

    def gradients_of(values: Case) -> list[torch.Tensor | None]:
        _run_backward(_chosen(reference(*values), wanted), grads)
        return _gradients(values)

    inputs = [a.name for a, v in zip(op.forward.args, case, strict=True) if is_float(v)]
    names = [f"grad_{name} of {op.name}" for name in inputs]
    return Truth(op, case, names, gradients_of, 3, [g for g in grads if g is not None])


def differentiated(op: Op, case: Case) -> list[bool]:
    """Which outputs the reference differentiates: not a mask, not an argmax."""
    assert op.reference is not None
    return [r.requires_grad for r in as_tuple(op.reference(*cast(case)))]


def check_forward(
    op: Op,
    case: Case,
    around: Around = contextlib.nullcontext,
    errors: list[compare.Errors] | None = None,
    run: Callable[..., Any] | None = None,
) -> tuple[torch.Tensor, ...]:
    """Compare the op's outputs with the truth; returns them.

    The op is run in ``around()``; ``run`` is called in its place if given (compiled, say).
    """
    with around():
        outputs = as_tuple((run or op)(*case))
    true_outputs(op, case).check(outputs, errors)
    return outputs


def check_backward(
    op: Op,
    case: Case,
    grads_for: GradsFor | None = None,
    around: Around = contextlib.nullcontext,
    errors: list[compare.Errors] | None = None,
    run: Callable[..., Any] | None = None,
) -> tuple[torch.Tensor, ...]:
    """Compare the op's gradients with the truth; returns them.

    ``grads_for`` makes the gradient of an output; None stands for one that is undefined.
    """
    make_grad = grads_for or (lambda o: torch.randn(o.shape, dtype=torch.float64).to(o))
    wanted = differentiated(op, case)
    with around():
        ours = cast(case)
        outputs = _chosen((run or op)(*ours), wanted)
        for o in outputs:
            if not o.requires_grad:
                raise compare.Mismatch(f"{op.name}: an output is cut off from autograd")
        grads = [make_grad(r.detach()) for r in outputs]
        _run_backward(outputs, grads)
    got = _gradients(ours)
    true_gradients(op, case, grads).check(got, errors)
    return tuple(g for g in got if g is not None)


def _output_name(op: Op, i: int) -> str:
    returns = op.outputs
    return op.name if len(returns) == 1 else f"{returns[i].name} of {op.name}"


def _chosen(outputs: Any, wanted: list[bool]) -> list[torch.Tensor]:
    return [o for o, w in zip(as_tuple(outputs), wanted, strict=True) if w]


def _run_backward(outputs: list[torch.Tensor], grads: Sequence[torch.Tensor | None]) -> None:
    pairs = [(o, g.to(o.dtype)) for o, g in zip(outputs, grads, strict=True) if g is not None]
    if pairs:
        torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])


def _gradients(values: Case) -> list[torch.Tensor | None]:
    return [t.grad for t in differentiable(values)]


def _check_absent(got: torch.Tensor | None, torchs: torch.Tensor | None, what: str) -> None:
    """No gradient and one of zeros mean the same."""
    given = got if torchs is None else torchs
    if given is not None and bool(given.any()):
        who, other = ("the op", "its reference") if torchs is None else ("the reference", "the op")
        raise compare.Mismatch(f"{what}: {who} has one, {other} has none")


def _moved(case: Case, roundings: float) -> Iterator[Case]:
    """The case in float64 with one input at a time moved by so many roundings, both ways."""
    exact = cast(case, torch.float64)
    for i, value in enumerate(case):
        if not is_float(value):
            continue
        step = roundings * torch.finfo(value.dtype).eps
        generator = torch.Generator(value.device).manual_seed(0)
        either = torch.randint(0, 2, value.shape, generator=generator, device=value.device)
        either = either * 2.0 - 1.0
        for factor in (1 + step, 1 - step, 1 + step * either, 1 - step * either):
            changed = (exact[i].detach() * factor).requires_grad_(value.requires_grad)
            # Leaves of their own each time: gradients add up.
            yield cast((*exact[:i], changed, *exact[i + 1 :]))
