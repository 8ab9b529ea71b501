# SPDX-License-Identifier: Apache-2.0
"""Rows about sizes: empty, tiny, odd, many, long, far apart, huge."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

import torch

from opforge.check.row import Fault, NotApplicable, NotRun, Trial, row
from opforge.check.rows.errors import names_it
from opforge.check.situation import Situation, TooLarge
from opforge.truth import inputs

_SMALL = 5  # the size of the other dims while one is long
_BESIDE_ONE = 300  # and while one is 1
_SAMPLE = 64  # a huge situation is first timed at this fraction of its size
_PATIENCE = 10  # seconds for its forward, which runs a few times


def _sizes(t: Trial, dtype: torch.dtype) -> list[int]:
    width = 16 // dtype.itemsize  # elements of a 16-byte vector
    sizes = {1, 7, 33, 1025, width - 1, width + 1}
    return sorted(sizes | {31, 1023, width, 2 * width + 1} if t.full else sizes)


@row(
    0,
    "own-cases",
    "c s g",
    "The record's own cases must be right in every dtype. The truth is float64.",
)
def own_cases(t: Trial) -> None:
    """Outputs are near the truth, contiguous or as the record says."""
    for s in t.own(*t.every_dtype):
        for output in s.forward():
            if t.op.like is None and not output.is_contiguous():
                s.last = ""
                raise Fault(
                    f"the output has strides {output.stride()} for shape {tuple(output.shape)}; "
                    "outputs are contiguous unless the record says like=<input>"
                )


@row(
    1,
    "empty",
    "c s g",
    "Dims of size 0 occur in every real pipeline, and an empty launch is an error in CUDA.",
    star=True,
)
def empty(t: Trial) -> None:
    """Empty outputs have the right shape and gradients are 0, whatever the strides of the input."""
    for base in t.kinds():
        for chosen in base.sizes():
            if s := t.resized(base, chosen, 0, _SMALL):
                s.both()
                for name in [n for n, x in s.tensors.items() if x.dim() and not x.numel()]:
                    t.trying(s.change(name, inputs.stepped)).both()


@row(
    2,
    "scalars",
    "c s g",
    "Tensors with one element or no dims must give a right result, or an error that names them.",
)
def scalars(t: Trial) -> None:
    """All dims are 1, and then each tensor in turn has no dims."""
    for base in t.kinds():
        t.demand(base.resize(dict.fromkeys(base.sizes(), 1)))
        for name in base.tensors:
            s = t.trying(base.change(name, inputs.scalar))
            if s.makes_sense():
                s.both()
            else:
                _refuses_rank(s, name)


def _refuses_rank(s: Situation, name: str) -> None:
    try:
        s.call()
    except (TypeError, ValueError, RuntimeError) as error:
        if names_it(str(error), name):
            return
        raise Fault(
            f"{name} without dims is refused, but the message does not name it: {error}"
        ) from None
    raise Fault(f"{name} without dims is accepted, though the record or its reference refuses it")


@row(
    3,
    "odd-sizes",
    "c s g",
    "Kernels forget tails at sizes around the vector width and the warp size.",
    star=True,
)
def odd_sizes(t: Trial) -> None:
    """1, 7, 31, 33, 1023, 1025, the vector width, one more and less; six in a quick check."""
    for dtype in t.dtypes:
        for base in t.kinds(dtype):
            for chosen in base.sizes():
                for size in _sizes(t, dtype):
                    # Some loops merge the dims beside a dim of 1 into one long dim.
                    if s := t.resized(base, chosen, size, _SMALL if size > 1 else _BESIDE_ONE):
                        s.both()


@row(
    11,
    "huge",
    "g",
    "Beyond 2^31 elements, a 32-bit index silently wraps around.",
    star=True,
    alone=True,  # the truth of 2^31 elements takes most of a GPU's memory
)
def huge(t: Trial) -> None:
    """2^31 - 1, 2^31 and 2^31 + 1 elements: in one dim, and in rows of 2 and of 3."""
    dtype = min(t.every_dtype, key=lambda d: d.itemsize)
    tried = left_out = slow = 0
    refused: list[str] = []
    for base in t.kinds(dtype):
        most = max(base.tensors.values(), key=lambda x: x.numel())
        if most.numel() == 0 or not 1 <= most.dim() <= 2:
            continue
        rows = most.shape[0]
        ways = [(2, 2**30), (3, (2**31 + 1) // 3)]
        if most.dim() == 1:
            ways = [(3, 2**31 - 1), (3, 2**31), (3, 2**31 + 1)]
        for rest, count in ways:
            # Fewer rows of the same values show whether the op accepts them. With labels this runs
            # the reference on the CPU, which would need all memory at full size.
            small = _in_rows(base, rows, inputs.VALUES, rest)
            if not small.makes_sense():
                continue
            gradient = small.has_gradient()
            try:
                sample = t.trying(_in_rows(base, rows, count // _SAMPLE, rest))
                if _seconds(sample) * _SAMPLE > _PATIENCE:
                    slow += 1
                    continue
                _one_huge(t, _in_rows(base, rows, count, rest), gradient)
                tried += 1
            except torch.OutOfMemoryError:
                left_out += 1
            except ValueError as error:  # it says what it does not take
                refused.append(str(error).splitlines()[0])
            torch.cuda.empty_cache()
    if not tried + left_out + slow + len(refused):
        raise NotApplicable("no case has one or two dims to make huge")
    t.note = "; ".join([f"{tried} situations", *(f"refused: {text}" for text in set(refused))])
    if left_out:
        t.note += f"; {left_out} left out: not enough GPU memory for the float64 truth"
    if slow:
        t.note += f"; {slow} left out: more than {_PATIENCE} s with the truth by PyTorch"
    if not tried and not refused:
        raise NotRun(t.note)


def _in_rows(base: Situation, rows: int, count: int, rest: int) -> Situation:
    """``base`` with ``count`` rows where it has ``rows``, and ``rest`` of everything else."""
    new = {**dict.fromkeys(base.sizes(), rest), rows: count}
    s = base
    for name, tensor in base.tensors.items():
        shape = tuple(new.get(n, n) for n in tensor.shape)
        s = s.change(name, inputs.repeated, shape) if shape != tuple(tensor.shape) else s
    return s


def _seconds(s: Situation) -> float:
    """The time of a forward and its truth. PyTorch's cumsum uses one thread per column."""
    s.forward()  # the first one also loads kernels
    begin = time.perf_counter()
    s.forward()
    return time.perf_counter() - begin


def _one_huge(t: Trial, s: Situation, gradient: bool) -> None:
    t.trying(s).forward()
    torch.cuda.empty_cache()
    if gradient:
        s.backward(inputs.expanded_gradient)


@row(
    12,
    "far-apart",
    "c s g",
    "With strides beyond 2^31, offsets wrap around although the sizes are small.",
    alone=True,  # the memory in between takes gigabytes
)
def far_apart(t: Trial) -> None:
    """Two rows of an input or a gradient, or two columns, have 2^31 elements between them."""
    dtype = min(t.every_dtype, key=lambda d: d.itemsize)
    for base in t.kinds(dtype):
        for name, tensor in base.tensors.items():
            for dim in dict.fromkeys((0, tensor.dim() - 1)) if tensor.dim() else ():
                if tensor.shape[dim] > 1:
                    _one_far_apart(t, base, name, dim)


def _one_far_apart(t: Trial, base: Situation, name: str, dim: int) -> None:
    s = base.resize({n: min(n, 9) for n in base.sizes()})
    s = s.resize({s.tensors[name].shape[dim]: 2})
    if not s.makes_sense():
        return
    try:
        far = t.trying(s.change(name, inputs.far_apart, dim))
    except RuntimeError as error:  # the allocator's
        raise NotRun(f"not enough memory: {str(error).splitlines()[0]}") from None
    far.forward()
    if s.has_gradient():
        far.backward()
        if dim == 0:
            t.trying(s)
            del far  # the gradient needs its gigabytes
            s.backward(inputs.far_apart_gradient)


@row(
    13,
    "many-rows",
    "c s g",
    "A grid has at most 65,535 blocks in y and z. With more rows, a launch fails or leaves some "
    "out.",
    star=True,
)
def many_rows(t: Trial) -> None:
    """Use more rows than a grid can have blocks in its second dim."""
    found = []
    for base in t.kinds(t.dtypes[0]):
        most = max(base.tensors.values(), key=lambda x: x.dim())
        if most.dim() >= 2:
            rows = dict.fromkeys(n for n in most.shape[:-1] if n != 1)
            found += [t.resized(base, chosen, 65_537 + 32, 3) for chosen in rows]
    for s in _bearable(t, found):
        t.trying(s).both()


def _bearable(t: Trial, found: list[Situation | None]) -> list[Situation]:
    """The large situations that a quick check has time for, and always the smallest."""
    made = [s for s in found if s is not None]
    least = min((s.elements for s in made), default=0)
    return [s for s in made if t.full or s.elements <= max(t.place.kind.few_elements, 2 * least)]


@row(
    14,
    "long-row",
    "c s g",
    "A row that does not fit into shared memory or registers needs another path with the same "
    "result.",
)
def long_row(t: Trial) -> None:
    """Rows of 100,003 elements; in the simulator also many rows of 16,392, far from 0."""
    found = []
    for dtype in t.dtypes[:1] if t.hurried else t.dtypes:
        for base in t.kinds(dtype):
            most = max(base.tensors.values(), key=lambda x: x.dim())
            if most.dim() and most.shape[-1] != 1:
                found.append(t.resized(base, most.shape[-1], 100_003, 2))
    for s in _bearable(t, found):
        t.trying(s).both()
    if t.place.simulated:
        _many_long_rows(t)


def _many_long_rows(t: Trial) -> None:
    """Test more rows than a GPU of one multiprocessor works on at once.

    Kernels have other paths for them. The rows consist of whole vectors, and their values are so
    far from 0 that a mean needs care.
    """
    for base in t.kinds():
        most = max(base.floats, key=lambda n: base.floats[n].dim(), default="")
        shape = base.floats[most].shape if most else ()
        if len(shape) < 2 or shape[-1] == 1 or shape.count(shape[-1]) > 1:
            continue
        rows = {n: 9 if len(shape) == 2 else 3 for n in shape[:-1] if n != 1}
        with contextlib.suppress(TooLarge):
            s = base.resize({**rows, shape[-1]: 16_392}).change(most, inputs.shifted, 1e3)
            s.place = replace(s.place, processors=1)
            if t.full or s.elements <= t.place.kind.few_elements:
                t.demand(s)


@row(
    82,
    "launch-limits",
    "s",
    "A GPU refuses a launch that needs more threads, registers or shared memory than it has. What "
    "a kernel needs depends on the sizes and the dtype.",
    star=True,
)
def launch_limits(t: Trial) -> None:
    """The largest cases, and rows up to 100,003 elements."""
    for dtype in t.dtypes:
        for base in t.kinds(dtype):
            most = max(base.tensors.values(), key=lambda x: x.dim())
            _launches(t, base)
            if not most.dim() or most.shape[-1] == 1:
                continue
            for length in (1_000, 5_000, 30_000, 100_003):
                if s := t.resized(base, most.shape[-1], length, 2):
                    _launches(t, s)


def _launches(t: Trial, s: Situation) -> None:
    """Launch all kernels for these arguments; the simulator refuses what a GPU would refuse."""
    t.trying(s).call()
    if s.has_gradient():
        s.backward()
