# SPDX-License-Identifier: Apache-2.0
"""One case of an op against the float64 reference, forward and backward."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from opforge.check import compare
from opforge.check.narrow_rounding import NarrowRounding
from opforge.check.rounding import RandomRounding, random_rounding, short_cumsum
from opforge.op import Backward, Op, as_tuple, is_float

Case = tuple[Any, ...]
Around = Callable[[], contextlib.AbstractContextManager[Any]]
_WIDEST = 64  # elements that any loop over vectors takes at a time, or several times as many
_SMALL = 1 << 18  # elements of all tensors of a case
_ROUGH = 2**-13  # of an element and of what is usual in its tensor
Pick = Callable[[torch.Tensor], torch.Tensor]
Results = Sequence[torch.Tensor | None]
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


def as_leaves(case: Case, only: int | Collection[int] | None = None) -> Case:
    """The case with its floating point tensors as leaves that want a gradient, strides kept.

    ``only`` is the position of the one argument that wants one, or those of several; by default all
    do.
    """
    wanted = range(len(case)) if only is None else (only,) if isinstance(only, int) else only
    return tuple(
        a.detach().requires_grad_(i in wanted) if is_float(a) else a for i, a in enumerate(case)
    )


class ShortSums(TorchFunctionMode):
    """Inside, torch.cumsum adds up blocks, so that it errs little; see ``short_cumsum``."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if function in (torch.cumsum, torch.Tensor.cumsum) and not kwargs:
            return short_cumsum(*args)
        return function(*args, **(kwargs or {}))


def _nearby(case: Case) -> Case:
    """A case of small tensors on the CPU: a GPU takes longer over many small steps."""
    if sum(v.numel() for v in case if isinstance(v, torch.Tensor)) > _SMALL:
        return case
    return tuple(
        v.detach().cpu().requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) else v
        for v in case
    )


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Inside, torch uses one thread: several rows run at a time, and their threads would wait."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Spreads:
    """The root of the squares of differences that roundings make, added up over samples.

    By hypot: the square of a difference at either end of float64 has no room in it, and an infinite
    spread would allow for anything.
    """

    def __init__(self) -> None:
        self.samples = 0
        self._roots: dict[int, torch.Tensor] = {}

    def add(self, moved: Results, still: Results) -> None:
        """Take the differences of one sample in."""
        for i, (value, right) in enumerate(zip(moved, still, strict=True)):
            if value is None or right is None:
                continue
            value, right = compare.parts(value.detach()), compare.parts(right.detach())
            if not right.is_floating_point():
                continue
            right = right.to(value.device)
            off = (value.double() - right.double()).masked_fill_(~torch.isfinite(right), 0)
            off = off.abs_().nan_to_num_(nan=math.inf, posinf=math.inf)
            self._roots[i] = self._roots[i].hypot_(off) if i in self._roots else off

    def of(self, i: int) -> torch.Tensor:
        """The root of the mean square of result ``i``."""
        return self._roots[i] / math.sqrt(self.samples)


class Truth:
    """What results are compared with: PyTorch's in the same dtype, and those in float64.

    ``saved`` gives the results of the backward's own formula, in float64, with what the forward
    has saved moved by roundings of a seed; None stands for no rounding. What a forward returns is
    rounded to its dtype, and a backward that starts from there errs by as much. ``picked`` gives
    the results for some elements of a pointwise op's tensors alone.
    """

    def __init__(
        self,
        op: Op,
        case: Case,
        names: list[str],
        results: Callable[[Case], Results],
        saved: Callable[[int | None], Results] | None = None,
        picked: Callable[[Pick], Results] | None = None,
    ) -> None:
        self._op, self._case, self._names = op, case, names
        self._results, self._saved, self._picked = results, saved, picked
        self._torchs = results(cast(case))
        with ShortSums():
            self._exact = results(cast(case, torch.float64))
        self._from_saved: Results = []
        self._wide, self._narrow = _Spreads(), _Spreads()

    def check(
        self, got: Results, errors: list[compare.Errors] | None = None, rough: bool = False
    ) -> None:
        """Every result must be within the allowed error of the truth, or ``rough``-ly so."""
        if len(got) != len(self._names):
            raise compare.Mismatch(f"{self._op.name}: {len(got)} results, not {len(self._names)}")
        for i, (what, one) in enumerate(zip(self._names, got, strict=True)):
            if not isinstance(one, torch.Tensor | None):
                raise compare.Mismatch(f"{what}: a {type(one).__name__}, not a tensor")
            theirs, right = self._torchs[i], self._exact[i]
            if one is None or theirs is None or right is None:
                _check_absent(one, theirs, what)
                continue
            # What is not even roughly right may be a sum of which nothing is left but roundings.
            spreads = [self._rough_spread, self._spread] if rough else [self._spread]
            any_order = self._op.rowwise and what.startswith("grad_")
            alone = functools.partial(self._alone, i) if self._picked is not None else None
            for spread in spreads:
                try:
                    found = compare.check(
                        one, theirs, right, functools.partial(spread, i), what, any_order, alone
                    )
                    break
                except compare.Mismatch:
                    if spread is spreads[-1]:
                        raise
            if errors is not None:
                errors.append(found)

    def _spread(self, i: int, samples: int, narrow: bool) -> torch.Tensor | None:
        """How far roundings put result ``i`` from the truth: the root of the mean square."""
        dtypes = [t.dtype for t in differentiable(self._case)]
        if narrow and not {torch.float16, torch.bfloat16} & set(dtypes):
            return None
        spreads, near = self._narrow if narrow else self._wide, _nearby(self._case)
        while spreads.samples < samples:
            spreads.samples += 1
            seed = spreads.samples
            if narrow:
                with NarrowRounding(seed) as rounding:
                    moved = self._results(cast(near))
                spreads.add([rounding.unrounded(m) for m in moved], self._exact)
                continue
            result = self._torchs[i]
            assert result is not None
            with RandomRounding(compare.compute_dtype(*dtypes), seed, result.dtype):
                moved = self._results(cast(near, torch.float64))
            spreads.add(moved, self._exact)
            if self._saved is not None:
                self._from_saved = self._from_saved or self._saved(None)
                spreads.add(self._saved(seed), self._from_saved)
        return spreads.of(i)

    def _rough_spread(self, i: int, samples: int, narrow: bool) -> torch.Tensor | None:
        """A guess that is far too wide, for tensors of which samples take too long.

        What is read or written at a wrong place, left out or done twice is far beyond it.
        """
        exact, result = self._exact[i], self._torchs[i]
        assert exact is not None
        assert result is not None
        if narrow:
            return None
        size = compare.parts(exact.detach()).double().abs()
        usual = size.nan_to_num(0, 0, 0).square().mean().sqrt()
        return (size + usual) * max(_ROUGH, torch.finfo(result.dtype).eps)

    def _alone(self, i: int, found: torch.Tensor) -> Iterator[torch.Tensor]:
        """Result ``i`` for single elements: by loops over vectors, and by loops over the rest."""
        assert self._picked is not None
        (wide,) = self._picked(lambda t: t.reshape(-1)[found].repeat_interleave(_WIDEST))[i : i + 1]
        if wide is not None:
            yield wide[::_WIDEST]
        if len(found) <= _WIDEST:
            narrow = [self._picked(lambda t, f=f: t.reshape(-1)[f : f + 1])[i] for f in found]  # type: ignore[misc]
            yield torch.cat([n for n in narrow if n is not None])

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


def true_outputs(op: Op, case: Case) -> Truth:
    """The truth about the outputs for a case."""
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
    """Whether an element depends on those at its own place alone."""
    return op.pointwise and len({v.shape for v in case if isinstance(v, torch.Tensor)}) == 1


def _picked(case: Case, pick: Pick) -> Case:
    return tuple(
        pick(v.detach()).requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) else v
        for v in case
    )


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
    """The gradients by the backward's own formula, from outputs and statistics that are rounded.

    The reference of a backward makes the statistics anew, to be differentiable. What an op composes
    in its place starts from those that were kept. None where the backward starts from the inputs
    alone.
    """
    if op.backward is None:
        return None
    composed = op.backward.composed if isinstance(op.backward, Backward) else None
    formula = composed or op.gradient_formula
    case = _nearby(case)
    outputs = op.returned(*cast(case))
    exact = op.returned(*cast(case, torch.float64))
    device = outputs[0].device
    given = iter(g if g is None else g.to(device, torch.float64) for g in grads)
    incoming = [next(given) if w else None for w in wanted]
    incoming += [None] * (len(exact) - len(wanted))

    def gradients_of(seed: int | None) -> Results:
        saved = [t.detach() for t in exact]
        if seed is not None:
            saved = [
                random_rounding(wide, narrow.dtype, seed)
                for wide, narrow in zip(saved, outputs, strict=True)
            ]
        arguments = tuple(
            a.detach() if isinstance(a, torch.Tensor) else a for a in cast(case, torch.float64)
        )
        with torch.no_grad():
            found: Results = op._gradient.by(formula, arguments, saved, incoming)
            return found

    return gradients_of


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
    rough: bool = False,
) -> tuple[torch.Tensor, ...]:
    """Compare the op's outputs with the truth; returns them.

    The op is run in ``around()``; ``run`` is called in its place if given (compiled, say).
    ``rough`` allows for more than any rounding: it is for tensors too large to find out.
    """
    with around():
        outputs = as_tuple((run or op)(*case))
    with one_thread():
        true_outputs(op, case).check(outputs, errors, rough)
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
    """Compare the op's gradients with the truth; returns them.

    ``grads_for`` makes the gradient of an output; None stands for one that is undefined.
    """
    make_grad = grads_for or (lambda o: torch.randn(o.shape, dtype=torch.float64).to(o))
    wanted = differentiated(op, case)
    with around():
        ours = _to_overwrite(op, cast(case))
        outputs = _chosen((run or op)(*ours), wanted)
        for o in outputs:
            if not o.requires_grad:
                raise compare.Mismatch(f"{op.name}: an output is cut off from autograd")
        grads = [make_grad(r.detach()) for r in outputs]
        _run_backward(outputs, grads)
    got = _gradients(ours)
    with one_thread():
        true_gradients(op, case, grads).check(got, errors, rough)
    return tuple(g for g in got if g is not None)


def _to_overwrite(op: Op, case: Case) -> Case:
    """The case with copies, laid out alike, of what the backward is allowed to write over."""
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


def _check_absent(got: torch.Tensor | None, torchs: torch.Tensor | None, what: str) -> None:
    """No gradient and one of zeros mean the same."""
    given = got if torchs is None else torchs
    if given is not None and bool(given.any()):
        who, other = ("the op", "its reference") if torchs is None else ("the reference", "the op")
        raise compare.Mismatch(f"{what}: {who} has one, {other} has none")
