# SPDX-License-Identifier: Apache-2.0
"""Registers a record with torch: schema, fake kernel, autograd, autocast and vmap.

This happens in Python, before any binary exists. The implementation registered here is a fallback
for all devices. On the first call it loads the compiled kernel, which torch then prefers for its
device. If there is none, it runs the reference (never for a CUDA tensor). A function composed of
other ops runs that composition and has no fallback.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.library import Library

from opforge.errors import RecordError
from opforge.op import Backward, Op, as_result, as_tuple
from opforge.registration import gradient, inductor, vmap
from opforge.registration.arguments import check_arguments
from opforge.registration.calls import AUTOCAST_KEYS, autocast_rule, make_call, transformable
from opforge.registration.schema import Schema, parse

BELOW = "below_autograd"  # the overload that autograd does not see; host.h registers it as well

# A Library unregisters its ops when it is collected. These ops live as long as the process.
_libraries: list[Library] = []


def register(op: Op) -> None:
    """Register ``op`` and its backward under ``torch.ops.<namespace>`` and make it callable."""
    library = Library(op.namespace, "FRAGMENT")
    try:
        _register(library, op)
    except Exception:
        library._destroy()  # do not leave the op half registered
        raise
    _libraries.append(library)


def _register(library: Library, op: Op) -> None:
    def checked(*args: Any) -> Any:
        check_arguments(op, args)
        return as_result(op.returned(*args))

    _compose(op)
    _define(library, op, op.forward, checked, like=op.like, pointwise=op.pointwise)
    grad = _register_backward(library, op)
    op._gradient = grad
    run = _register_autograd(library, op, op.forward, grad, op.pointwise)
    if cast := autocast_rule(op):
        _register_autocast(library, op, cast)
    overload, below = _overload(op, op.forward), _overload(op, op.forward, BELOW)
    op._call = make_call(op, overload, below, run, grad)


def _register_backward(library: Library, op: Op) -> gradient.Gradient:
    if callable(op.backward):
        return gradient.of_function(op.forward, op.backward)
    if op.backward is None:
        return _register_derived(library, op, op.forward, op.reference)
    schema = parse(op.backward.schema)
    grad = gradient.of_op(op.forward, schema, None, op.backward, op.statistics)
    pointwise = op.pointwise and len(schema.returns) == 1
    like = _like_of_backward(op, schema)
    _define(library, op, schema, op.backward.reference, like, pointwise)
    # Double backward: the VJP of the backward's reference.
    double = _register_derived(library, op, schema, op.backward.reference)
    grad.run = _register_autograd(library, op, schema, double, pointwise)
    grad.run_below = _overload(op, schema, BELOW)._op
    return grad


def _register_derived(
    library: Library, op: Op, forward: Schema, reference: Callable[..., Any] | None
) -> gradient.Gradient:
    """Register an op for the VJP of a reference. Tracing sees it as one op without a gradient."""
    assert reference is not None
    derived = gradient.derive(forward, reference)
    schema = parse(derived.schema)
    library.define(schema.text)
    n_grads = len(forward.returns)

    def fake(*values: Any) -> Any:
        inductor.name_ops()
        arguments = [values[n_grads + i] for i in forward.tensor_slots]
        return as_result(
            [values[0].new_empty((0,)) if a is None else a.new_empty(a.shape) for a in arguments]
        )

    def implementation(*values: Any) -> Any:
        return _fresh(derived.reference(*values), values)

    def unsupported(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError(
            f"opforge.{op.name}: gradients of this order are not supported for {forward.name}"
        )

    def save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    qualified = f"{op.namespace}::{schema.name}"
    library.impl(schema.name, implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(qualified, fake, lib=library)
    torch.library.register_autograd(qualified, unsupported, lib=library)
    _register_vmap(library, op, schema, pointwise=False)
    overload = _overload(op, schema)
    inductor.note(overload)
    run = transformable(schema.name, overload, save_nothing, unsupported, pointwise=False)
    return gradient.of_op(forward, schema, run)


def _define(
    library: Library,
    op: Op,
    schema: Schema,
    reference: Callable[..., Any],
    like: str | None,
    pointwise: bool,
) -> None:
    """Register schema, fallback, fake kernel and vmap rule of one function."""
    slots = _like_slots(op, schema, like)
    for variant in ("default", BELOW):
        name = schema.name if variant == "default" else f"{schema.name}.{variant}"
        library.define(schema.under(name), tags=(torch.Tag.pt2_compliant_tag,))
        overload = _overload(op, schema, variant)
        fallback = _fallback(op, name, overload, reference, slots)
        library.impl(name, fallback, "CompositeExplicitAutograd")
        inductor.note(overload)
    library.impl(f"{schema.name}.{BELOW}", torch.library.fallthrough_kernel, "Autograd")

    def fake(*args: Any) -> Any:
        inductor.name_ops()
        made = enumerate(as_tuple(reference(*args)))
        return as_result([_empty(output, args, slots, i) for i, output in made])

    torch.library.register_fake(f"{op.namespace}::{schema.name}", fake, lib=library)
    _register_vmap(library, op, schema, pointwise)


def _compose(op: Op) -> None:
    """Wrap the record's composed functions with the checks and output layouts of a kernel."""
    forward = op.composed
    backward = op.backward.composed if isinstance(op.backward, Backward) else None
    if forward is not None and backward is None:
        raise RecordError(
            f"the record of {op.name} is composed, but its backward is not: give a Backward with "
            "composed=<a function>"
        )

    def run_forward(*args: Any) -> Any:
        assert forward is not None
        check_arguments(op, args)
        return _fresh(forward(*args), args)

    def run_backward(*args: Any) -> Any:
        assert backward is not None
        return _fresh(backward(*args), args)

    if forward is not None:
        op._composed[op.name] = run_forward
    if backward is not None:
        op._composed[op.functions[1].name] = run_backward


def _fallback(
    op: Op, name: str, overload: Any, reference: Callable[..., Any], slots: Sequence[int | None]
) -> Callable[..., Any]:
    """The implementation until a kernel is loaded, and on devices without one."""
    if composed := op._composed.get(name.partition(".")[0]):
        return composed

    def fallback(*args: Any) -> Any:
        from opforge.build import load  # the builder is not needed before the first call

        tensor = next(a for a in args if isinstance(a, torch.Tensor))
        if load.ensure(op, name, tensor.device.type, tensor.dtype):
            return overload(*args)
        return _fresh(reference(*args), args, slots)

    return fallback


def _register_autograd(
    library: Library, op: Op, schema: Schema, grad: gradient.Gradient, pointwise: bool
) -> Callable[..., Any]:
    """Register the gradient. Returns the function that runs the op with autograd."""

    def backward(ctx: Any, *grads: Any) -> Any:
        return grad.backward(ctx, grads, grad.run)

    name = f"{op.namespace}::{schema.name}"
    torch.library.register_autograd(name, backward, setup_context=grad.save, lib=library)
    return transformable(schema.name, _overload(op, schema), grad.save, backward, pointwise)


def _register_autocast(library: Library, op: Op, cast: Callable[..., tuple[Any, ...]]) -> None:
    overload = _overload(op, op.forward)

    def autocast(*args: Any) -> Any:
        args = cast(args)
        with torch._C._ExcludeDispatchKeyGuard(AUTOCAST_KEYS):  # also turns autocast off
            return overload(*args)

    for key in ("AutocastCPU", "AutocastCUDA"):
        library.impl(op.name, autocast, key)


def _register_vmap(library: Library, op: Op, schema: Schema, pointwise: bool) -> None:
    rule = functools.partial(vmap.rule(pointwise), _overload(op, schema))
    torch.library.register_vmap(f"{op.namespace}::{schema.name}", rule, lib=library)


def _like_of_backward(op: Op, schema: Schema) -> str | None:
    """The saved input whose layout the gradients get, or None."""
    if op.like is None:
        return None
    always = [a.name for a in schema.args if a.type == "Tensor"]  # optional ones may not be saved
    return next((n for n in (op.like, op.forward.returns[0].name) if n in always), None)


def _like_slots(op: Op, schema: Schema, like: str | None) -> list[int | None]:
    """For each return, the position of the argument whose strides it gets if shapes match."""
    slot = None if like is None else [a.name for a in schema.args].index(like)
    statistics = len(op.statistics) if schema is op.forward else 0
    return [slot] * (len(schema.returns) - statistics) + [None] * statistics


def _empty(
    output: torch.Tensor,
    args: tuple[Any, ...],
    slots: Sequence[int | None],
    i: int,
    device: str | None = None,
) -> torch.Tensor:
    """Empty storage for return ``i``: contiguous, or with the strides of its like argument."""
    slot = slots[i] if i < len(slots) else None
    if slot is not None and args[slot].shape == output.shape:
        return torch.empty_like(args[slot], dtype=output.dtype, device=device)
    return torch.empty(output.shape, dtype=output.dtype, device=device or output.device)


def _fresh(result: Any, args: tuple[Any, ...], slots: Sequence[int | None] = ()) -> Any:
    """A reference's outputs with the promised strides, as new memory that aliases nothing."""
    taken = {a.untyped_storage()._cdata for a in args if isinstance(a, torch.Tensor)}
    made = []
    for i, output in enumerate(as_tuple(result)):
        promised = _empty(output, args, slots, i, "meta").stride()  # takes no memory
        if output.stride() != promised or output.untyped_storage()._cdata in taken:
            output = _empty(output, args, slots, i).copy_(output)
        taken.add(output.untyped_storage()._cdata)
        made.append(output)
    return as_result(made)


def _overload(op: Op, schema: Schema, variant: str = "default") -> Any:
    return getattr(getattr(getattr(torch.ops, op.namespace), schema.name), variant)
