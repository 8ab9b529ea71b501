# SPDX-License-Identifier: Apache-2.0
"""Rows about the layout of inputs in memory, and about what the op may do to that memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from opforge.check.row import Fault, NotApplicable, NotRun, Trial, row
from opforge.check.situation import Situation
from opforge.op import as_tuple
from opforge.truth import cases, compare, inputs

Change = Callable[[torch.Tensor], torch.Tensor]


def _relaid(t: Trial, base: Situation, change: Change, least_dims: int = 1) -> list[Situation]:
    """The case with another layout for each tensor in turn, and then for all of them."""
    fit = [n for n, x in base.tensors.items() if x.dim() >= least_dims]
    found = [base.change(n, change) for n in fit]
    if len(fit) > 1:
        together = base
        for n in fit:
            together = together.change(n, change)
        found.append(together)
    return found


def _agree(t: Trial, base: Situation, s: Situation) -> None:
    """Demand the contiguous result's bits for a pointwise op, and the allowed error for others.

    On the CPU, a loop over vectors and one over single elements call different functions, so
    they may differ in the last bit.
    """
    t.trying(s)
    if not t.op.pointwise:
        s.both()
        return
    gradient = s.has_gradient()
    s.forward()
    if gradient:
        s.backward()
    plain, changed = base.results(gradient), s.results(gradient)
    for a, b in zip(plain, changed, strict=True):
        if a.shape != b.shape:  # the gradient of an expanded input has its own shape
            continue
        if not t.place.kind.last_bit or not compare.within_an_ulp(a, b):
            compare.check_same_bits(a, b, "the result differs bitwise from the contiguous one")


@row(
    4,
    "offset",
    "c s g",
    "x[1:] is not 16-byte aligned. A vector load from it crashes, or reads its neighbours.",
    star=True,
)
def offset(t: Trial) -> None:
    """Tensors start one element past the start of an allocation."""
    for base in t.kinds():
        for s in _relaid(t, base, inputs.offset):
            _agree(t, base, s)


@row(
    5,
    "strides",
    "c s g",
    "Transposed, stepped and channels_last inputs are common. A kernel that reads numel() "
    "elements from data_ptr() reads the wrong ones.",
    star=True,
)
def strides(t: Trial) -> None:
    """Every layout gives the contiguous result, and no copy is made where rows are contiguous."""
    for base in t.kinds():
        for change, dims in ((inputs.transposed, 2), (inputs.stepped, 1), (inputs.padded, 1)):
            for s in _relaid(t, base, change, dims):
                _agree(t, base, s)
        if all(x.dim() == 4 for x in base.tensors.values()):
            for s in _relaid(t, base, inputs.channels_last, 4):
                _agree(t, base, s)
        # A reference may make copies.
        for name in base.tensors if t.place.target.sources(t.op) else ():
            if base.tensors[name].dim() == 2 and base.tensors[name].numel() > 64:
                _no_hidden_copy(t.trying(base.change(name, inputs.padded)), name)


def _no_hidden_copy(s: Situation, name: str) -> None:
    """Raise if the op copies as many elements as the argument has."""
    s.call()  # a first call may load, and build
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        s.call()
    size = s.tensors[name].numel()
    for event in profile.events() or []:
        shapes = [torch.Size(x).numel() for x in event.input_shapes if x]
        if event.name in _COPIES and size in shapes and not _inside_torch(event):
            raise Fault(
                f"{event.name} of {size} elements inside the op: the rows of {name} are "
                "contiguous, so a kernel can read them without this copy, which doubles the memory "
                "traffic"
            )


# What a kernel's host code calls to copy a tensor, and what that calls in turn.
_COPIES = ("aten::clone", "aten::copy_")
_ASKED_FOR = (*_COPIES, "aten::contiguous", "aten::reshape", "aten::to", "aten::_to_copy")


def _inside_torch(event: Any) -> bool:
    """Whether one of torch's own operators makes the copy, such as aten::addmm of its bias."""
    parent = event.cpu_parent
    while parent is not None:
        if parent.name.startswith("aten::") and parent.name not in _ASKED_FOR:
            return True
        parent = parent.cpu_parent
    return False


@row(
    6,
    "expanded",
    "c s g",
    "Broadcast tensors have stride 0, and sliding windows overlap. Their memory is smaller than "
    "numel().",
)
def expanded(t: Trial) -> None:
    """One row or one column is expanded; rows overlap."""
    for base in t.kinds():
        for change in (inputs.expanded, inputs.expanded_last, inputs.windows):
            for name, tensor in base.tensors.items():
                if tensor.dim() and tensor.numel():
                    t.demand(base.change(name, change))


@row(7, "negative-view", "c s g", "z.conj().imag keeps its minus sign in a flag, not in memory.")
def negative_view(t: Trial) -> None:
    """A tensor with the lazy minus sign is resolved before the kernel sees it."""
    for base in t.kinds():
        for name in base.floats:
            t.demand(base.change(name, inputs.negative_view))


@row(25, "aliasing", "c s g", "An output that shares memory with an input changes with it.")
def aliasing(t: Trial) -> None:
    """Outputs are new memory (the schema promises it to torch.compile)."""
    for s in t.own():
        for output in as_tuple(s.call()):
            for name, tensor in s.tensors.items():
                if output.numel() and _storage(output) == _storage(tensor):
                    raise Fault(
                        f"the output shares memory with {name}; return a new tensor (a copy): "
                        "torch.compile relies on the schema, which promises a new one"
                    )


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@row(
    26,
    "poisoned-memory",
    "c s g",
    "New memory holds old values. A kernel that adds to it without clearing it is right only by "
    "luck.",
    star=True,
)
def poisoned_memory(t: Trial) -> None:
    """The old values in fresh allocations have no effect."""
    for s in t.own(t.dtypes[0]):
        right = s.results()
        for _ in range(3):
            with poison(t.place.device, [r.numel() for r in right]):
                got = s.results()
            for a, b in zip(got, right, strict=True):
                compare.check_same_bits(a, b, "the result depends on old values in fresh memory")


class poison:
    """Within it, fresh memory is full of NaN (on a GPU) or of a huge number (on the CPU)."""

    def __init__(self, device: str, sizes: Sequence[int] = ()) -> None:
        self.device, self.sizes = device, sizes

    def __enter__(self) -> None:
        if self.device == "cpu":
            _perturb(1)
        if not self.sizes:
            return
        counts = [*self.sizes] * 4 + [1 << n for n in range(4, 20)]
        kept = [torch.full((max(n, 1),), float("nan"), device=self.device) for n in counts]
        kept.clear()  # the allocator hands these out next

    def __exit__(self, *_: object) -> None:
        if self.device == "cpu":
            _perturb(0)


def _perturb(byte: int) -> None:
    """glibc's malloc fills what it hands out with the complement of a byte; 0 turns that off."""
    try:
        ctypes.CDLL(None).mallopt(-6, byte)  # M_PERTURB
    except AttributeError:
        raise NotRun("needs glibc's mallopt to poison the memory of the CPU") from None


@row(
    30,
    "strided-parameters",
    "c s g",
    "Weights and biases can be slices and transposes, too, and an optional one can be None.",
)
def strided_parameters(t: Trial) -> None:
    """Every tensor but the first is strided in turn; each optional tensor is None."""
    optional = [a.name for a in t.op.forward.args if a.type == "Tensor?"]
    tried = 0
    for base in t.kinds():
        for name in list(base.tensors)[1:]:
            for change in (inputs.stepped, inputs.offset):
                if base.tensors[name].dim():
                    t.demand(base.change(name, change))
                    tried += 1
        for name in optional:
            s = t.trying(base.set(name, None))
            if s.makes_sense():
                s.both()
                tried += 1
    if not tried:
        raise NotApplicable("it has one tensor and no optional one")


@row(
    50,
    "inputs-unchanged",
    "c s g",
    "The schema says that the op writes to none of its inputs, and autograd relies on it.",
)
def inputs_unchanged(t: Trial) -> None:
    """Neither the forward nor the backward writes to an input, a gradient or a saved tensor."""
    for s in t.own():
        before = {n: x.detach().clone() for n, x in s.tensors.items()}
        case = cases.as_leaves(s.case)
        with t.place():
            outputs = as_tuple(t.op(*case))
            kept = [o.detach().clone() for o in outputs]
            wanted = [o for o in outputs if o.requires_grad]
            grads = [inputs.random_gradient(o, t.seed) for o in wanted]
            same = [g.clone() for g in grads]
            if wanted:
                leaves = cases.differentiable(case)
                first, second = (
                    torch.autograd.grad(wanted, leaves, grads, retain_graph=True, allow_unused=True)
                    for _ in range(2)
                )
        pairs = [(before[n], x, n) for n, x in s.tensors.items()]
        pairs += [(a, b, "the output") for a, b in zip(kept, outputs, strict=True)]
        pairs += [(a, b, "the gradient of the output") for a, b in zip(same, grads, strict=True)]
        for a, b, what in pairs:
            compare.check_same_bits(a, b, f"the op changed {what}")
        if wanted:
            for a, b in zip(first, second, strict=True):
                if a is not None:
                    compare.check_same_bits(
                        a, b, "the gradient of a second backward differs bitwise"
                    )
