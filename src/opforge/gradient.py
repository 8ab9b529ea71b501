# SPDX-License-Identifier: Apache-2.0
"""How an op is differentiated: what is saved and which gradient goes where, resolved by name once.

A backward's parameters say all of it. ``grad_y`` is the gradient of output ``y``; ``x`` or ``y`` is
that input or output, saved; ``x_shape`` is the shape of ``x`` without keeping ``x`` alive;
``needs_x`` tells whether anybody asked for the gradient of ``x``. Where only some of several
outputs were used, the gradient of another is zeros, or None if the schema says ``Tensor? grad_y``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from opforge.errors import RecordError
from opforge.op import Backward, as_result, as_tuple
from opforge.schema import Schema


class Gradient:
    """The backward of one forward schema, ready to be wired into autograd."""

    def __init__(
        self,
        forward: Schema,
        parameters: list[str],
        targets: list[str],
        run: Callable[..., Any] | None,
        optional: Sequence[str] = (),
        passes: Mapping[str, str] | None = None,
    ) -> None:
        # Called with the backward's parameters, in order: differentiably, and below autograd.
        self.run: Any = run
        self.run_below: Any = run
        self.name = f"{forward.name}_backward"
        inputs = [a.name for a in forward.args]
        outputs = [r.name for r in forward.returns]
        self._n_inputs = len(inputs)
        passes = passes or {}
        self._passed = [(inputs.index(i), outputs.index(o)) for i, o in passes.items()]
        asked = [o for o in outputs if f"grad_{o}" in parameters or o in passes.values()]
        # Without a gradient to come, an output is none of autograd's business.
        self._ignored = [outputs.index(o) for o in outputs if o not in asked]
        # Of one output among several the gradient may be missing.
        self._zeroed = [
            outputs.index(o) for o in asked if len(outputs) > 1 and f"grad_{o}" not in optional
        ]
        self._several = len(outputs) > 1
        self._targets = [inputs.index(t) for t in targets]
        # Where each parameter comes from: (kind, position).
        self._sources: list[tuple[str, int]] = []
        self._saved: list[tuple[str, int]] = []
        self._kept: list[tuple[str, int]] = []
        for name in parameters:
            self._sources.append(self._resolve(name, forward, inputs, outputs))

    def _resolve(
        self, name: str, forward: Schema, inputs: list[str], outputs: list[str]
    ) -> tuple[str, int]:
        if name.startswith("grad_") and name[5:] in outputs:
            return "grad", outputs.index(name[5:])
        if name.startswith("needs_") and name[6:] in inputs:
            return "needs", inputs.index(name[6:])
        if name in outputs:
            self._saved.append(("output", outputs.index(name)))
            return "saved", len(self._saved) - 1
        if name in inputs:
            position = inputs.index(name)
            store, kind = (
                (self._saved, "saved") if forward.args[position].is_tensor else (self._kept, "kept")
            )
            store.append(("input", position))
            return kind, len(store) - 1
        if name.endswith("_shape") and name[:-6] in inputs:
            self._kept.append(("shape", inputs.index(name[:-6])))
            return "kept", len(self._kept) - 1
        raise RecordError(
            f"the backward of {forward.name} asks for {name!r}, which is none of: "
            f"grad_<output> ({', '.join('grad_' + o for o in outputs)}), an input or output "
            f"({', '.join([*inputs, *outputs])}), <input>_shape, needs_<input>"
        )

    def save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep on ``ctx`` what the backward will ask for, and nothing else."""
        outputs = as_tuple(output)
        if self._several:
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(*[outputs[i] for i in self._ignored])
            ctx.missing = {i: _like(outputs[i]) for i in self._zeroed}
        if self._saved:
            ctx.save_for_backward(
                *[outputs[i] if kind == "output" else inputs[i] for kind, i in self._saved]
            )
        ctx.kept = [
            inputs[i].shape if kind == "shape" and inputs[i] is not None else inputs[i]
            for kind, i in self._kept
        ]

    def backward(self, ctx: Any, grads: tuple[Any, ...], run: Callable[..., Any]) -> Any:
        """Gradients for every forward argument, None where there is none."""
        aligned: list[Any] = [None] * self._n_inputs
        for position, output in self._passed:
            if ctx.needs_input_grad[position]:
                aligned[position] = grads[output]
        if any(ctx.needs_input_grad[i] for i in self._targets):
            self._run_into(aligned, ctx, grads, run)
        return aligned[0] if self._n_inputs == 1 else tuple(aligned)

    def _run_into(
        self, aligned: list[Any], ctx: Any, grads: tuple[Any, ...], run: Callable[..., Any]
    ) -> None:
        saved = ctx.saved_tensors if self._saved else ()
        values = []
        for kind, i in self._sources:
            if kind == "grad":
                missing = grads[i] is None and i in self._zeroed
                values.append(torch.zeros(**ctx.missing[i]) if missing else grads[i])
            elif kind == "saved":
                values.append(saved[i])
            elif kind == "kept":
                values.append(ctx.kept[i])
            else:
                values.append(ctx.needs_input_grad[i])
        results = as_tuple(run(*values))
        if len(results) != len(self._targets):
            raise RecordError(
                f"the backward returned {len(results)} gradients "
                f"for {len(self._targets)} tensor inputs"
            )
        for position, result in zip(self._targets, results, strict=True):
            if ctx.needs_input_grad[position]:
                aligned[position] = result


def of_function(forward: Schema, function: Callable[..., Any]) -> Gradient:
    """A backward in plain PyTorch: one gradient per tensor input, in order."""
    parameters = list(inspect.signature(function).parameters)
    return Gradient(forward, parameters, [a.name for a in forward.args if a.is_tensor], function)


def of_op(
    forward: Schema,
    backward: Schema,
    run: Callable[..., Any] | None,
    passes: Mapping[str, str] | None = None,
) -> Gradient:
    """A backward that is an op: its returns are named ``grad_<input>``."""
    targets = []
    for result in backward.returns:
        target = result.name.removeprefix("grad_")
        if target == result.name or target not in [a.name for a in forward.args if a.is_tensor]:
            raise RecordError(
                f"{backward.name} returns {result.name!r}; a backward's returns are named "
                f"grad_<input>, and the tensor inputs of {forward.name} are "
                f"{', '.join(a.name for a in forward.args if a.is_tensor)}"
            )
        targets.append(target)
    for name, output in (passes or {}).items():
        others = [a.name for a in forward.args if a.is_tensor and a.name not in targets]
        if name not in others or output not in [r.name for r in forward.returns]:
            raise RecordError(
                f"the backward of {forward.name} passes the gradient of {output!r} to {name!r}; "
                f"it can pass that of {', '.join(r.name for r in forward.returns)} to the tensor "
                f"inputs it returns none for ({', '.join(others) or 'there is none'})"
            )
    optional = [a.name for a in backward.args if a.type == "Tensor?"]
    return Gradient(forward, [a.name for a in backward.args], targets, run, optional, passes)


def derive(forward: Schema, reference: Callable[..., Any]) -> Backward:
    """The backward of an op that declares none: the vector-Jacobian product of its reference."""
    inputs = [a for a in forward.args if a.is_tensor]
    grads = ", ".join(f"Tensor grad_{r.name}" for r in forward.returns)
    args = ", ".join(f"{a.type} {a.name}" for a in forward.args)
    returns = ", ".join(f"Tensor grad_{a.name}" for a in inputs)
    slots = forward.tensor_slots
    n_grads = len(forward.returns)

    def vjp(*values: Any) -> Any:
        grads, arguments = values[:n_grads], list(values[n_grads:])
        leaves: dict[int, torch.Tensor] = {}
        with _autograd_back_on(), torch.enable_grad():
            for i in slots:
                if arguments[i] is not None and arguments[i].is_floating_point():
                    arguments[i] = leaves[i] = arguments[i].detach().requires_grad_()
            outputs = as_tuple(reference(*arguments))
            pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if o.requires_grad]
            found: tuple[torch.Tensor | None, ...] = (None,) * len(leaves)
            if pairs:
                found = torch.autograd.grad(
                    [o for o, _ in pairs],
                    list(leaves.values()),
                    [g for _, g in pairs],
                    allow_unused=True,
                )
        by_slot = dict(zip(leaves, found, strict=True))
        # The op must return a tensor for every input, also for one without a gradient.
        results = [
            by_slot[i] if by_slot.get(i) is not None else _zeros(arguments[i], grads[0])
            for i in slots
        ]
        return as_result(results)

    return Backward(f"{forward.name}_backward({grads}, {args}) -> ({returns})", vjp)


def _like(tensor: torch.Tensor) -> dict[str, Any]:
    """What torch.zeros needs to make another like it, without keeping it alive."""
    return {"size": tensor.shape, "dtype": tensor.dtype, "device": tensor.device}


def _zeros(argument: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    return like.new_zeros(0) if argument is None else torch.zeros_like(argument)


def _autograd_back_on() -> Any:
    """A kernel runs below autograd, its dispatch keys excluded: lift that."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradCPU", "AutogradCUDA", "AutogradMeta", "AutogradOther", "ADInplaceOrView"):
        excluded = excluded.remove(getattr(torch._C.DispatchKey, key))
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)
