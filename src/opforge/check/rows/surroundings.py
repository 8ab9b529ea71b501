# SPDX-License-Identifier: Apache-2.0
"""Rows about what surrounds the kernels: references, statistics, public function, module."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch

from opforge import discover
from opforge.check.row import Fault, NotApplicable, Trial, row
from opforge.op import Op, as_tuple
from opforge.truth import cases, compare, inputs


@row(
    78,
    "backward-reference",
    "c",
    "A gradient formula that is wrong in the kernel and in its reference agrees with itself.",
    star=True,
)
def backward_reference(t: Trial) -> None:
    """Compare the backward's own reference with autograd of the forward's, in float64."""
    if t.op.backward is None:
        raise NotApplicable("its gradient is that of its reference by construction")
    for s in t.own(*t.every_dtype[:1]):
        if not s.has_gradient():
            continue
        for name in s.floats:
            s = s.change(name, inputs.to_dtype, torch.float64)
        leaves = cases.as_leaves(t.trying(s).case)
        wanted = cases.differentiated(t.op, leaves)
        with torch.no_grad():
            outputs = t.op.returned(*s.case)
        given = [
            inputs.random_gradient(o, t.seed) if w else None for o, w in _with(outputs, wanted)
        ]
        grads = [g for g, w in _with(given, wanted) if w]
        with torch.no_grad():
            found = t.op._gradient.by(t.op.gradient_formula, s.case, outputs, given)
        truth = cases.true_gradients(t.op, leaves, grads)
        try:
            truth.check(found)
        except compare.Mismatch as error:
            raise compare.Mismatch(
                f"the backward's reference is not the derivative of the reference: {error}"
            ) from None
    t.note = "in float64"


def _with(values: Any, wanted: list[bool]) -> Any:
    """Pairs of outputs and whether they are differentiated; statistics are not."""
    return zip(values, wanted + [False] * (len(values) - len(wanted)), strict=True)


@row(
    78,
    "statistics",
    "c s g",
    "Only the backward sees the statistics that the forward returns, so no other row compares "
    "them.",
    star=True,
)
def statistics(t: Trial) -> None:
    """Compare all that the kernel returns, including statistics, with the record's formulas."""
    if not t.op.statistics:
        raise NotApplicable("it returns no statistics")
    names = [f"{r.name} of {t.op.name}" for r in t.op.forward.returns]
    overload = getattr(getattr(torch.ops, t.op.namespace), t.op.name).default
    for s in t.own():
        t.trying(s)
        with t.place(), torch.no_grad():
            t.op(*s.case)  # loads the kernel
            got = as_tuple(overload(*s.case))
        if not got[0].numel():  # the mean of no elements is undefined
            continue
        cases.Truth(t.op, s.case, names, lambda values: t.op.returned(*values)).check(got)


@row(
    79,
    "public-function",
    "c",
    "Users call the public function, with defaults and keywords that the op behind it does not "
    "have.",
)
def public_function(t: Trial) -> None:
    """Each keyword argument reaches the op, and the function returns the op's result."""
    function = discover.function_of(t.op)
    if isinstance(function, Op):
        raise NotApplicable("its record has no public function")
    parameters = inspect.signature(function).parameters
    known = [a.name for a in t.op.forward.args if a.name in parameters]
    needed = [n for n, p in parameters.items() if p.default is p.empty and p.kind not in (2, 4)]
    if not set(needed) <= set(known):
        raise NotApplicable(f"its function takes arguments that the op does not: {needed}")
    tried = 0
    for s in t.kinds(t.dtypes[0]):
        given = {n: s.values[n] for n in known}
        for arguments in (given, {n: given[n] for n in needed}):
            t.trying(s)
            with _seen(t.op) as seen:
                try:
                    got = as_tuple(function(**arguments))
                except (
                    TypeError,
                    ValueError,
                ):  # it takes a name where the schema has a number, say
                    continue
            _demand_reached(t.op, arguments, seen)
            for a, b in zip(got, as_tuple(t.op(*seen[0])), strict=False):
                if isinstance(a, torch.Tensor) and a.shape == b.shape:
                    compare.check_same_bits(a, b, "the public function differs bitwise from the op")
            tried += 1
    if not tried:
        raise NotApplicable("its function accepts none of the cases unchanged")


@contextlib.contextmanager
def _seen(op: Op) -> Iterator[list[tuple[Any, ...]]]:
    """The arguments of the calls of an op."""
    calls: list[tuple[Any, ...]] = []
    call = op._call
    assert call is not None

    def noted(*args: Any) -> Any:
        calls.append(args)
        return call(*args)

    op._call = noted
    try:
        yield calls
    finally:
        op._call = call


def _demand_reached(op: Op, arguments: dict[str, Any], seen: list[tuple[Any, ...]]) -> None:
    if not seen:
        raise Fault("the public function does not call its op")
    reached = dict(zip((a.name for a in op.forward.args), seen[0], strict=True))
    for name, value in arguments.items():
        other = reached[name]
        if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
            same = value.numel() == other.numel() and bool(
                compare.same_bits(value.reshape(-1), other.reshape(-1).to(value.dtype)).all()
            )
        else:
            same = type(value) is not type(other) or value == other
        if not same:
            raise Fault(f"the public function was given {name}={value!r}, the op got {other!r}")


@row(
    79,
    "module-is-the-op",
    "c g",
    "A module that forgets an option trains a different model.",
)
def module_is_the_op(t: Trial) -> None:
    """The module of each case, with the case's parameters, gives the op's result."""
    if t.op.module is None:
        raise NotApplicable("its record names no module")
    tried = 0
    for s in t.own(t.dtypes[0]):
        if not s.elements:  # a layer has at least one feature
            continue
        module = t.op.module(*s.case).to(t.place.device, s.dtype)
        tensors = list(s.tensors.values())
        owned = list(module.parameters())
        given, parameters = (
            tensors[: len(tensors) - len(owned)],
            tensors[len(tensors) - len(owned) :],
        )
        taken = len(inspect.signature(module.forward).parameters)
        if [p.shape for p in owned] != [x.shape for x in parameters] or len(given) > taken:
            continue  # a bias without a weight, say
        with torch.no_grad():
            for parameter, value in zip(owned, parameters, strict=True):
                parameter.copy_(value)
        if module.training and any(isinstance(m, torch.nn.Dropout) for m in module.modules()):
            continue
        tried += 1
        t.trying(s)
        with torch.no_grad():
            got, right = as_tuple(module(*given)), as_tuple(s.call())
        for a, b in zip(got, right, strict=False):
            if a.shape == b.shape:
                compare.check_same_bits(a, b.to(a.dtype), "the module differs bitwise from the op")
    if not tried:
        raise NotApplicable("no case has a module whose parameters are the case's last tensors")
