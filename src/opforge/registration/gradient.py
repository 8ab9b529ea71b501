# SPDX-License-Identifier: Apache-2.0
"""Wires a backward into autograd: what is saved, and which gradient goes where.

The parameters of the backward determine this, and they are resolved once. ``grad_y`` is the
gradient of output ``y``. ``x`` or ``y`` is that input or output, saved. ``x_shape`` is the shape of
``x``, without keeping ``x`` alive. ``needs_x`` says whether the gradient of ``x`` is needed.
``may_overwrite`` says whether the backward may write to the saved outputs, because nobody reads
them again. If only some of several outputs were used, the gradient of another output is zeros, or
None if the schema says ``Tensor? grad_y``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from opforge.errors import RecordError
from opforge.op import MAY_OVERWRITE, Backward, as_result, as_tuple, is_float
from opforge.registration.by_name import by_name
from opforge.registration.schema import Schema


class Gradient:
    """The backward of one forward schema, with its parameters resolved."""

    def __init__(
        self,
        forward: Schema,
        parameters: list[str],
        targets: list[str],
        run: Callable[..., Any] | None,
        optional: Sequence[str] = (),
        details: Backward | None = None,
    ) -> None:
        # Both take the backward's parameters in order. Only the first can be differentiated.
        self.run: Any = run
        self.run_below: Any = run
        self.name = f"{forward.name}_backward"
        inputs = [a.name for a in forward.args]
        outputs = [r.name for r in forward.returns]
        self._inputs = inputs
        self._outputs = outputs
        self._unsaved: Callable[..., Sequence[str]] | None = None
        if details and details.unsaved is not None:
            self._unsaved = by_name(details.unsaved, forward, "unsaved")
        self._shared = self._resolve_shared(details, inputs, outputs, targets) if details else ()
        handed_on = details.shared.values() if details else ()
        asked = [o for o in outputs if f"grad_{o}" in (*parameters, *handed_on)]
        # Outputs whose gradient is not used are marked as not differentiable.
        self._ignored = [outputs.index(o) for o in outputs if o not in asked]
        # With several outputs, the gradient of one may be missing.
        self._zeroed = [
            outputs.index(o) for o in asked if len(outputs) > 1 and f"grad_{o}" not in optional
        ]
        self._several = len(outputs) > 1
        self._targets = [inputs.index(t) for t in targets]
        # The source of each parameter: (kind, position).
        self._sources: list[tuple[str, int]] = []
        self._saved: list[tuple[str, int, str]] = []
        self._kept: list[tuple[str, int]] = []
        for name in parameters:
            self._sources.append(self._resolve(name, forward, inputs, outputs))
        overwrites = details.overwrites if details else {}
        self._overwrites = [
            (self._place(x, parameters), self._place(permission, parameters))
            for x, permission in overwrites.items()
        ]

    def _place(self, name: str, parameters: list[str]) -> int:
        if name not in parameters:
            raise RecordError(
                f"{self.name} has {name!r} in overwrites, which is not among its arguments"
            )
        return parameters.index(name)

    def _resolve(
        self, name: str, forward: Schema, inputs: list[str], outputs: list[str]
    ) -> tuple[str, int]:
        if name.startswith("grad_") and name[5:] in outputs:
            return "grad", outputs.index(name[5:])
        if name.startswith("needs_") and name[6:] in inputs:
            return "needs", inputs.index(name[6:])
        if name in outputs:
            self._saved.append(("output", outputs.index(name), name))
            return "saved", len(self._saved) - 1
        if name in inputs:
            position = inputs.index(name)
            if forward.args[position].is_tensor:
                self._saved.append(("input", position, name))
                return "saved", len(self._saved) - 1
            self._kept.append(("input", position))
            return "kept", len(self._kept) - 1
        if name.endswith("_shape") and name[:-6] in inputs:
            self._kept.append(("shape", inputs.index(name[:-6])))
            return "kept", len(self._kept) - 1
        if name == MAY_OVERWRITE:
            return MAY_OVERWRITE, 0
        raise RecordError(
            f"the backward of {forward.name} asks for {name!r}, which is none of: "
            f"grad_<output> ({', '.join('grad_' + o for o in outputs)}), an input or output "
            f"({', '.join([*inputs, *outputs])}), <input>_shape, needs_<input>, {MAY_OVERWRITE}"
        )

    def _resolve_shared(
        self, details: Backward, inputs: list[str], outputs: list[str], targets: list[str]
    ) -> list[tuple[int, int | None, bool, int]]:
        """For each shared gradient: its input, its result if any, and where it is taken from."""
        found = []
        for name, source in details.shared.items():
            other = source.removeprefix("grad_")
            if name not in inputs or other not in (*targets, *outputs) or other == source:
                raise RecordError(
                    f"{self.name} shares the gradient of {name!r} as {source!r}; that must be an "
                    f"input ({', '.join(inputs)}) and a gradient that it returns or gets "
                    f"({', '.join('grad_' + n for n in (*targets, *outputs))})"
                )
            own = targets.index(name) if name in targets else None
            incoming = other in outputs
            place = outputs.index(other) if incoming else targets.index(other)
            found.append((inputs.index(name), own, incoming, place))
        return found

    def save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save on ``ctx`` what the backward asks for, and nothing else."""
        outputs = as_tuple(output)
        if self._several:
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(*[outputs[i] for i in self._ignored])
            ctx.missing = {i: _like(outputs[i]) for i in self._zeroed}
        if self._saved:
            skipped = self._skipped(inputs)
            ctx.save_for_backward(
                *[
                    None if name in skipped else (outputs if kind == "output" else inputs)[i]
                    for kind, i, name in self._saved
                ]
            )
        ctx.kept = [
            inputs[i].shape if kind == "shape" and inputs[i] is not None else inputs[i]
            for kind, i in self._kept
        ]

    def _skipped(self, inputs: tuple[Any, ...]) -> Sequence[str]:
        """The names of inputs and outputs that need not be saved this time."""
        names = self._unsaved(*inputs) if self._unsaved else ()
        # A str is a sequence of strings, too, and every part of it would be taken for a name.
        known = [*self._inputs, *self._outputs]
        if isinstance(names, str) or not set(names).issubset(known):
            raise RecordError(
                f"unsaved of {self.name} returned {names!r}; it must return a list of inputs "
                f"and outputs ({', '.join(known)})"
            )
        return names

    def backward(self, ctx: Any, grads: tuple[Any, ...], run: Callable[..., Any]) -> Any:
        """Gradients for all forward arguments, or None for those without one."""
        aligned: list[Any] = [None] * len(self._inputs)
        wanted = [ctx.needs_input_grad[i] for i in self._targets]
        wanted += [ctx.needs_input_grad[i] for i, _, incoming, _ in self._shared if not incoming]
        results = self._results(ctx, grads, run) if any(wanted) else ()
        for position, result in zip(self._targets, results, strict=bool(results)):
            if ctx.needs_input_grad[position]:
                aligned[position] = result
        for position, own, incoming, other in self._shared:
            returned = own is not None and results and results[own].numel() > 0
            if ctx.needs_input_grad[position] and not returned:
                aligned[position] = (grads if incoming else results)[other]
        return aligned[0] if len(self._inputs) == 1 else tuple(aligned)

    def by(
        self,
        formula: Callable[..., Any],
        inputs: tuple[Any, ...],
        outputs: Sequence[Any],
        grads: Sequence[Any],
    ) -> list[Any]:
        """The gradients of the float inputs by a formula from saved values, without autograd."""
        ctx = _Context([is_float(i) for i in inputs])
        self.save(ctx, inputs, as_result(outputs))
        if not self._several:
            grads = [g for g in grads if g is not None]
        found = self.backward(ctx, tuple(grads), formula)
        aligned = (found,) if len(inputs) == 1 else found
        return [g for g, i in zip(aligned, inputs, strict=True) if is_float(i)]

    def _results(
        self, ctx: Any, grads: tuple[Any, ...], run: Callable[..., Any]
    ) -> tuple[Any, ...]:
        """Collect the arguments of the backward and run it."""
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
            elif kind == MAY_OVERWRITE:
                below = run is self.run_below and run is not self.run
                values.append(below and _for_the_last_time(grads))
            else:
                values.append(ctx.needs_input_grad[i])
        for tensor, permission in self._overwrites:
            # Only the eager path calls below autograd. On the others, the tensor must not change.
            values[permission] = values[permission] and run is self.run_below
            if values[permission]:
                # If another op saved the tensor as well, autograd raises its version error there.
                torch.autograd.graph.increment_version(values[tensor])
        results = as_tuple(run(*values))
        if len(results) != len(self._targets):
            raise RecordError(
                f"the backward returned {len(results)} gradients "
                f"for {len(self._targets)} tensor inputs"
            )
        return results


class _Context:
    """A stand-in for autograd's ctx, for use without autograd."""

    def __init__(self, needs_input_grad: list[bool]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        pass

    def mark_non_differentiable(self, *tensors: Any) -> None:
        pass


def of_function(forward: Schema, function: Callable[..., Any]) -> Gradient:
    """A backward in plain PyTorch: one gradient per tensor input, in order."""
    parameters = list(inspect.signature(function).parameters)
    return Gradient(forward, parameters, [a.name for a in forward.args if a.is_tensor], function)


def of_op(
    forward: Schema,
    backward: Schema,
    run: Callable[..., Any] | None,
    details: Backward | None = None,
    statistics: Collection[str] = (),
) -> Gradient:
    """A backward that is an op: its returns are named ``grad_<input>``."""
    asked = [a.name for a in backward.args] + list(details.shared.values() if details else ())
    for name in statistics:
        if f"grad_{name}" in asked:
            raise RecordError(
                f"{backward.name} asks for 'grad_{name}', but {name} is a statistic: callers do "
                f"not see it, so it has no gradient; ask for {name!r} itself"
            )
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
    optional = [a.name for a in backward.args if a.type == "Tensor?"]
    return Gradient(forward, [a.name for a in backward.args], targets, run, optional, details)


def derive(forward: Schema, reference: Callable[..., Any]) -> Backward:
    """The default backward of an op: the vector-Jacobian product of its reference."""
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
                argument = arguments[i]
                if is_float(argument) or (argument is not None and argument.is_complex()):
                    arguments[i] = leaves[i] = argument.detach().requires_grad_()
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
        # The op must return a tensor for every input, even if it has no gradient.
        results = [
            by_slot[i] if by_slot.get(i) is not None else _zeros(arguments[i], grads[0])
            for i in slots
        ]
        return as_result(results)

    return Backward(f"{forward.name}_backward({grads}, {args}) -> ({returns})", vjp)


def _for_the_last_time(grads: tuple[Any, ...]) -> bool:
    """Whether the running backward frees what was saved, and each kernel runs only once."""
    return not (
        torch._C._autograd._get_current_graph_task_keep_graph()  # retain_graph, or no backward
        or torch.compiler.is_compiling()
        # For a batch of gradients, a kernel runs several times. is_grads_batched has its own
        # dispatch key, which Python only sees as text.
        or any("Batched" in str(torch._C._dispatch_keys(g)) for g in grads if g is not None)
    )


def _like(tensor: torch.Tensor) -> dict[str, Any]:
    """The arguments of torch.zeros for a tensor like this one, without keeping it alive."""
    return {"size": tensor.shape, "dtype": tensor.dtype, "device": tensor.device}


def _zeros(argument: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    return like.new_zeros(0) if argument is None else torch.zeros_like(argument)


def _autograd_back_on() -> Any:
    """A context that re-enables autograd inside a kernel, where its dispatch keys are excluded."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradCPU", "AutogradCUDA", "AutogradMeta", "AutogradOther", "ADInplaceOrView"):
        excluded = excluded.remove(getattr(torch._C.DispatchKey, key))
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)
