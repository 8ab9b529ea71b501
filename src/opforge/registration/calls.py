# SPDX-License-Identifier: Apache-2.0
"""The three paths of a call of an op. All give the same result.

1. No gradient is needed: the call goes straight to the kernel, below autograd.
2. A gradient is needed in plain eager mode: an old-style ``autograd.Function`` around the two
   kernels. Per call, it costs half as much as registered autograd.

   "Below autograd" is an overload of each op, ``<op>.below_autograd``, for which autograd is a
   fallthrough. After register_autograd, every call of an op pays for it. Excluding the dispatch
   keys around the call would cost one of its four microseconds.
3. ``torch.compile``, export, tensor subclasses, dispatch modes: the registered op with registered
   autograd, which they can trace. The simulator's mode is an exception: it only runs another
   kernel, so calls take the paths that they take without it. functorch's grad cannot trace
   registered autograd, so its transforms get an ``autograd.Function`` of the kind that they need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch._C import DispatchKey, DispatchKeySet

from opforge.op import Op, is_float
from opforge.registration import gradient, vmap
from opforge.registration.arguments import explain

_PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})

AUTOCAST_KEYS = DispatchKeySet(DispatchKey.AutocastCPU) | DispatchKeySet(DispatchKey.AutocastCUDA)


def make_call(
    op: Op, overload: Any, below: Any, registered: Callable[..., Any], grad: gradient.Gradient
) -> Callable[..., Any]:
    """Make the function that runs ``op(...)``. ``registered`` is the third path."""
    kernel = below._op  # calling it directly saves 0.3 µs
    slots = op.forward.tensor_slots
    n_args = len(op.forward.args)
    function = _eager_function(op, kernel, grad)
    cast = autocast_rule(op)
    is_compiling = torch.compiler.is_compiling
    transforms_active = torch._C._are_functorch_transforms_active
    dispatch_modes = torch._C._len_torch_dispatch_stack
    function_modes = torch._C._len_torch_function_stack
    autocast_enabled = torch._C._is_any_autocast_enabled
    grad_enabled = torch.is_grad_enabled
    overload, kernel, registered = (_outputs_alone(op, f) for f in (overload, kernel, registered))

    def call(*args: Any) -> Any:
        if is_compiling():
            return overload(*args)
        try:
            if forward_ad._current_level >= 0:
                _refuse_tangents(op, args)
            if len(args) != n_args or transforms_active() or function_modes():
                return registered(*args)
            if (modes := dispatch_modes()) and not _only_routes(modes):
                return registered(*args)
            needs_grad = False
            for i in slots:
                tensor = args[i]
                if type(tensor) not in _PLAIN_TENSORS:
                    if tensor is None:
                        continue
                    return registered(*args)
                if tensor.requires_grad:
                    needs_grad = True
            run = function.apply if needs_grad and grad_enabled() else kernel
            if cast is not None and autocast_enabled():
                args = cast(args)
                with torch._C._ExcludeDispatchKeyGuard(
                    AUTOCAST_KEYS
                ):  # as the registered op does it
                    return run(*args)
            return run(*args)
        except (RuntimeError, TypeError) as error:
            reason = explain(op, args, error)
            if reason is error:
                raise
            raise reason from None

    return call


def _only_routes(count: int) -> bool:
    """Whether all of these ``count`` dispatch modes only redirect kernels and observe nothing."""
    modes = (torch._C._get_dispatch_stack_at(i) for i in range(count))
    return all(getattr(mode, "is_route", False) for mode in modes)


def _outputs_alone(op: Op, function: Any) -> Any:
    """Wrap a function that returns outputs and statistics to return the outputs alone."""
    count = len(op.outputs)
    if not op.statistics:
        return function
    if count == 1:
        return lambda *args: function(*args)[0]
    return lambda *args: function(*args)[:count]


def _refuse_tangents(op: Op, args: tuple[Any, ...]) -> None:
    """Raise for forward-mode AD, which kernels do not support. Tangents would be lost silently."""
    for arg in args:
        if isinstance(arg, torch.Tensor) and forward_ad.unpack_dual(arg).tangent is not None:
            raise NotImplementedError(
                f"opforge.{op.name} does not support forward-mode differentiation; "
                "use reverse mode (backward, torch.func.vjp)"
            )


def _eager_function(op: Op, kernel: Any, grad: gradient.Gradient) -> Any:
    """Path 2. ``forward`` takes ctx, because a separate setup_context triples the cost."""

    def forward(ctx: Any, *args: Any) -> Any:
        output = kernel(*args)
        grad.save(ctx, args, output)
        return output

    def backward(ctx: Any, *grads: Any) -> Any:
        # With create_graph the backward itself is differentiated, so autograd must see it.
        return grad.backward(ctx, grads, grad.run if torch.is_grad_enabled() else grad.run_below)

    members = {
        "forward": staticmethod(_outputs_alone(op, forward)),
        "backward": staticmethod(backward),
    }
    return type(f"{op.name}_eager", (torch.autograd.Function,), members)


def transformable(
    name: str, overload: Any, save: Any, backward: Any, pointwise: bool
) -> Callable[..., Any]:
    """A function that runs ``overload`` so that functorch can differentiate and batch it.

    These can be nested in any order: its autograd.Function has a forward without ctx, and its
    batching rule calls the function itself.
    """
    rule = vmap.rule(pointwise)

    def batch(info: Any, in_dims: Any, *args: Any) -> Any:
        return rule(wrapper.apply, info, in_dims, *args)

    members: dict[str, Any] = {
        "forward": staticmethod(lambda *args: overload(*args)),
        "setup_context": staticmethod(save),
        "backward": staticmethod(backward),
        "vmap": staticmethod(batch),
    }
    wrapper: Any = type(f"{name}_transformable", (torch.autograd.Function,), members)
    transforms_active = torch._C._are_functorch_transforms_active

    def run(*args: Any) -> Any:
        return wrapper.apply(*args) if transforms_active() else overload(*args)

    return run


def autocast_rule(op: Op) -> Callable[[tuple[Any, ...]], tuple[Any, ...]] | None:
    """A function that casts the arguments as the record's ``autocast`` says, or None."""
    rule = op.autocast
    # Arguments in own_dtypes keep their dtypes.
    slots = [i for i in op.forward.tensor_slots if op.forward.args[i].name not in op.own_dtypes]
    if rule is None:
        return None

    def cast(args: tuple[Any, ...]) -> tuple[Any, ...]:
        tensors = [t for t in map(args.__getitem__, slots) if is_float(t)]
        if not tensors or not all(torch.is_autocast_enabled(t.device.type) for t in tensors):
            return args
        dtype = rule
        if rule == "promote":
            dtype = tensors[0].dtype
            for tensor in tensors[1:]:
                dtype = torch.promote_types(dtype, tensor.dtype)
        elif any(t.dtype == torch.float64 for t in tensors):
            return args  # autocast never narrows float64
        elif rule == "low":
            dtype = torch.get_autocast_dtype(tensors[0].device.type)
        return tuple(a.to(dtype) if i in slots and is_float(a) else a for i, a in enumerate(args))

    return cast
