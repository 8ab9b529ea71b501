# SPDX-License-Identifier: Apache-2.0
"""mlp: linear, activation or gate, linear and a residual, as one op made of others.

For gradients it keeps x and z, what the activation gets, and of a relu what it returns. The
activated values h are not kept: the first product of the backward reads z for the derivative, and
its epilogue writes h as well, for the gradient of down_weight. That costs a write. To keep h would
cost memory from the forward to the backward, and a read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from opforge.op import FLOATS, Backward, Make, Op
from opforge.ops.families import product_gradients, products
from opforge.ops.families.norms import no_tensor
from opforge.ops.families.product_gradients import below

from . import fp8 as by_fp8
from . import main_grads


def is_gated(up_weight: Tensor, down_weight: Tensor, gate_weight: Tensor | None) -> bool:
    """Whether there is a gate, in a weight of its own or in the first rows of ``up_weight``."""
    return gate_weight is not None or up_weight.shape[0] == 2 * down_weight.shape[1] > 0


def arguments_of_activation(
    x: Tensor,
    up_weight: Tensor,
    up_bias: Tensor | None,
    gate_weight: Tensor | None,
    gate_bias: Tensor | None,
    tf32: bool,
) -> Tensor:
    """What is activated; with a gate, that and what is multiplied with it beside each other."""
    z = products.linear(x, up_weight, up_bias, tf32)
    if gate_weight is None:
        return z
    return torch.cat([products.linear(x, gate_weight, gate_bias, tf32), z], -1)


def activated(z: Tensor, activation: int, gated: bool) -> Tensor:
    """What ``down_weight`` multiplies."""
    if gated:
        return products.gate(z, activation)
    return products.finish(z, activation, 1.0, None, None)


def reference(
    x: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
    gate_weight: Tensor | None,
    gate_bias: Tensor | None,
    residual: Tensor | None,
    activation: int,
    tf32: bool,
    save: bool,
) -> Tensor:
    """The formula."""
    z = arguments_of_activation(x, up_weight, up_bias, gate_weight, gate_bias, tf32)
    h = activated(z, activation, is_gated(up_weight, down_weight, gate_weight))
    y = products.linear(h, down_weight, down_bias, tf32)
    return y if residual is None else y + residual


def z(
    x: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    up_bias: Tensor | None,
    gate_weight: Tensor | None,
    gate_bias: Tensor | None,
    activation: int,
    tf32: bool,
    save: bool,
) -> Tensor:
    """What the backward needs beside the inputs, if there is one."""
    if not save:
        return no_tensor(x)
    z = arguments_of_activation(x, up_weight, up_bias, gate_weight, gate_bias, tf32)
    plain = not is_gated(up_weight, down_weight, gate_weight)
    return activated(z, activation, False) if plain and activation == products.RELU else z


def backward_reference(
    grad_y: Tensor,
    x: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    up_bias: Tensor | None,
    gate_weight: Tensor | None,
    gate_bias: Tensor | None,
    z: Tensor,
    activation: int,
    tf32: bool,
    needs_x: bool,
    needs_up_weight: bool,
    needs_down_weight: bool,
    needs_up_bias: bool,
    needs_down_bias: bool,
    needs_gate_weight: bool,
    needs_gate_bias: bool,
) -> tuple[Tensor, ...]:
    """From the last layer to the first."""
    gated = is_gated(up_weight, down_weight, gate_weight)
    z = arguments_of_activation(x, up_weight, up_bias, gate_weight, gate_bias, tf32)
    h, grad_h, nothing = activated(z, activation, gated), grad_y @ down_weight, no_tensor(grad_y)
    if gated:
        passed = products.gate_backward(grad_h, z, activation)
    else:
        passed = products.finish_backward(grad_h, z, activation, 1.0, None, None)
    parts = [passed] if gate_weight is None else list(passed.chunk(2, -1))
    weights = [up_weight] if gate_weight is None else [gate_weight, up_weight]
    rows = products.rows_of(x)

    def of_weight(part: Tensor, inner: Tensor, needed: bool) -> Tensor:
        return products.rows_of(part).t() @ inner if needed else nothing

    def of_bias(part: Tensor, needed: bool) -> Tensor:
        return products.rows_of(part).sum(0) if needed else nothing

    return (
        products.through(parts, weights) if needs_x else nothing,
        of_weight(parts[-1], rows, needs_up_weight),
        of_weight(grad_y, products.rows_of(h), needs_down_weight),
        of_bias(parts[-1], needs_up_bias),
        of_bias(grad_y, needs_down_bias),
        of_weight(parts[0], rows, needs_gate_weight),
        of_bias(parts[0], needs_gate_bias),
    )


def composed(
    x: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
    gate_weight: Tensor | None,
    gate_bias: Tensor | None,
    residual: Tensor | None,
    activation: int,
    tf32: bool,
    save: bool,
) -> tuple[Tensor, Tensor]:
    """Two products. The first has the activation in its epilogue, the second the residual."""
    linear = below("linear")
    if is_gated(up_weight, down_weight, gate_weight):
        first = (up_weight, None) if gate_weight is None else (gate_weight, up_weight)
        biases = (up_bias, None) if gate_weight is None else (gate_bias, up_bias)
        h, z = below("gated_linear")(x, *first, *biases, activation, tf32, save)
    else:
        h, z = linear(x, up_weight, up_bias, None, activation, 1.0, None, None, tf32, save)
        if save and activation in (products.NONE, products.RELU):
            z = h
    y, _ = linear(
        *(h, down_weight, down_bias, residual, products.NONE, 1.0, None, None, tf32, False)
    )
    return y, z


def composed_backward(
    grad_y: Tensor,
    x: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    up_bias: Tensor | None,
    gate_weight: Tensor | None,
    gate_bias: Tensor | None,
    z: Tensor,
    activation: int,
    tf32: bool,
    needs_x: bool,
    needs_up_weight: bool,
    needs_down_weight: bool,
    needs_up_bias: bool,
    needs_down_bias: bool,
    needs_gate_weight: bool,
    needs_gate_bias: bool,
    totals: main_grads.Totals = (None, None, None),
) -> tuple[Tensor, ...]:
    """The product with the derivative in its epilogue, then three without one.

    ``totals`` get the gradients of up_weight, down_weight and gate_weight instead of autograd.
    """
    up_total, down_total, gate_total = totals
    gated = is_gated(up_weight, down_weight, gate_weight)
    is_h = not gated and activation in (products.NONE, products.RELU)  # z, where it is kept
    if z.numel() == 0:  # not kept, or there is nothing to keep
        z = arguments_of_activation(x, up_weight, up_bias, gate_weight, gate_bias, False)
        z = activated(z, activation, False) if is_h else z
    nothing = no_tensor(grad_y)
    grad_x = grad_up = grad_gate = grad_down = sums = grad_gate_bias = grad_down_bias = nothing
    sums_up = needs_up_bias or needs_gate_bias
    writes_h = needs_down_weight and not is_h
    passes = needs_x or needs_up_weight or needs_gate_weight or sums_up
    h = z
    if passes or writes_h:
        passed, h, sums = below("linear_dact")(
            *(grad_y, down_weight, z, activation, gated, tf32, writes_h, sums_up)
        )
    if needs_down_weight:
        inner = z if is_h else h
        _, grad_down = product_gradients.of_linear(
            *(grad_y, inner, down_weight, tf32, False, True), total=down_total
        )
        del inner
    del h  # its memory is free for the gradients that follow
    if needs_down_bias:
        grad_down_bias = below("reduce_sum")(products.rows_of(grad_y), [0], False)
    if passes and gate_weight is None:
        grad_x, grad_up = product_gradients.of_linear(
            *(passed, x, up_weight, tf32, needs_x, needs_up_weight), total=up_total
        )
    elif passes:
        assert gate_weight is not None
        grad_x, grad_gate, grad_up, grad_gate_bias, sums = product_gradients.of_gated(
            passed,
            sums,
            x,
            gate_weight,
            up_weight,
            tf32,
            needs_x,
            (needs_gate_weight, needs_up_weight),
            (needs_gate_bias, needs_up_bias),
            (gate_total, up_total),
        )
    return grad_x, grad_up, grad_down, sums, grad_down_bias, grad_gate, grad_gate_bias


def validate(
    x: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
    gate_weight: Tensor | None,
    gate_bias: Tensor | None,
    residual: Tensor | None,
    activation: int,
    tf32: bool,
) -> None:
    """The shapes and dtypes fit."""
    name = "opforge.mlp"
    if down_weight.dim() != 2 or up_weight.dim() != 2:
        what, weight = ("up", up_weight) if up_weight.dim() != 2 else ("down", down_weight)
        inner = "(hidden, features)" if what == "up" else "(outputs, hidden)"
        raise ValueError(f"{name}: {what}_weight must be {inner}, got shape {tuple(weight.shape)}")
    if gate_weight is not None:
        products.validate_gated("mlp", x, gate_weight, up_weight, gate_bias, up_bias)
    else:
        products.validate_linear("mlp", x, up_weight, up_bias, None, ("up_weight", "up_bias"))
        if gate_bias is not None:
            raise ValueError(
                f"{name}: gate_bias needs gate_weight; where up_weight holds gate and up, up_bias "
                "holds both biases"
            )
    rows, hidden = up_weight.shape[0], down_weight.shape[1]
    if gate_weight is not None and rows != hidden:
        raise ValueError(
            f"{name}: with gate_weight, up_weight must make the {hidden} values that down_weight "
            f"takes; got up_weight {tuple(up_weight.shape)} and down_weight "
            f"{tuple(down_weight.shape)}"
        )
    if rows != hidden and not is_gated(up_weight, down_weight, None):
        raise ValueError(
            f"{name}: up_weight makes {rows} values, but down_weight takes {hidden}: the first dim "
            "of up_weight must be the last one of down_weight, or twice that if it holds gate and "
            f"up; got up_weight {tuple(up_weight.shape)} and down_weight "
            f"{tuple(down_weight.shape)}"
        )
    products.check_dtype("mlp", x, "down_weight", down_weight)
    shape = (*x.shape[:-1], down_weight.shape[0])
    if down_bias is not None and down_bias.shape != shape[-1:]:
        raise ValueError(
            f"{name}: down_bias must have shape ({shape[-1]},), one value per row of down_weight "
            f"{tuple(down_weight.shape)}; got {tuple(down_bias.shape)}"
        )
    if residual is not None and residual.shape != shape:
        raise ValueError(
            f"{name}: residual must have the shape of the result, {shape} for x {tuple(x.shape)} "
            f"and down_weight {tuple(down_weight.shape)}; got {tuple(residual.shape)}"
        )
    products.check_dtype("mlp", x, "down_bias", down_bias)
    products.check_dtype("mlp", x, "residual", residual)
    products.validate_options("mlp", activation, tf32, x)


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Plain, gated by two weights or by one; every activation; empty, strided.

    Few features go with gelu, see gated_linear.
    """
    gelu, tanh, silu, sigmoid = (
        products.NAMES.index(name) for name in ("gelu", "gelu_tanh", "silu", "sigmoid")
    )
    kept, no_gate = (False, True), (None, None)
    weights = make(40, 3), make(24, 40)
    yield make(9, 3), *weights, make(40), make(24), *no_gate, make(9, 24), gelu, *kept
    yield make(2, 5, 24), make(40, 24), make(24, 40), *no_gate, *no_gate, None, products.RELU, *kept
    weights = make(40, 24), make(24, 40)
    yield make(33, 24), *weights, None, make(24), make(40, 24), None, None, silu, *kept
    yield make(7, 24), make(80, 24), make(16, 40), make(80), None, *no_gate, None, silu, *kept
    yield make(7, 5), make(13, 5), make(9, 13), make(13), None, *no_gate, None, tanh, False, False
    yield make(6, 8), make(16, 8), make(8, 16), None, None, *no_gate, make(6, 8), sigmoid, *kept
    yield make(5), make(12, 5), make(3, 12), make(12), make(3), *no_gate, None, gelu, *kept
    two = make(12, 10), make(12)
    yield make(4, 10), make(12, 10), make(10, 12), make(12), None, *two, make(4, 10), silu, *kept
    yield make(4, 6), make(9, 6), make(6, 9), None, None, *no_gate, None, products.NONE, *kept
    yield make(0, 8), *(make(16, 8), make(8, 16), make(16), make(8)), *no_gate, None, silu, *kept
    yield (
        make(24, 9).t(),
        make(24, 40).t(),
        make(40, 24).t(),
        None,
        None,
        *no_gate,
        None,
        gelu,
        *kept,
    )


def sized(make: Make, rows: int, cols: int) -> dict[str, Any]:
    """Four times as many hidden values as features; with a gate, 8 / 3 times as many, in 256s."""
    gelu, silu = (products.NAMES.index(name) for name in ("gelu", "silu"))
    x, hidden, gated = make(rows, cols), 4 * cols, -(-8 * cols // 768) * 256
    none, save = (None, None), make.requires_grad
    biases = make(hidden), make(cols)
    return {
        "gelu": (
            *(x, make(hidden, cols), make(cols, hidden), *biases, *none, None, gelu, False, save),
        ),
        "swiglu": (
            *(x, make(gated, cols), make(cols, gated), *none, make(gated, cols), None, None),
            *(silu, False, save),
        ),
    }


def operations(
    x: Tensor, up_weight: Tensor, down_weight: Tensor, gate_weight: Tensor | None
) -> int:
    """Two of each multiplication."""
    rows = x.numel() // max(1, x.shape[-1])
    weights = (up_weight, down_weight, gate_weight)
    return 2 * rows * sum(w.numel() for w in weights if w is not None)


op = Op(
    schema="mlp(Tensor x, Tensor up_weight, Tensor down_weight, Tensor? up_bias, "
    "Tensor? down_bias, Tensor? gate_weight, Tensor? gate_bias, Tensor? residual, "
    "int activation, bool tf32, bool save) -> (Tensor y, Tensor z)",
    reference=reference,
    statistics={"z": z},
    composed=composed,
    backward=Backward(
        "mlp_backward(Tensor grad_y, Tensor x, Tensor up_weight, Tensor down_weight, "
        "Tensor? up_bias, Tensor? gate_weight, Tensor? gate_bias, Tensor z, int activation, "
        "bool tf32, bool needs_x, bool needs_up_weight, bool needs_down_weight, "
        "bool needs_up_bias, bool needs_down_bias, bool needs_gate_weight, bool needs_gate_bias) "
        "-> (Tensor grad_x, Tensor grad_up_weight, Tensor grad_down_weight, Tensor grad_up_bias, "
        "Tensor grad_down_bias, Tensor grad_gate_weight, Tensor grad_gate_bias)",
        backward_reference,
        composed=composed_backward,
        shared={"residual": "grad_y"},
    ),
    dtypes=FLOATS,
    validate=validate,
    cases=cases,
    operations=operations,
    sized=sized,
    rowwise=True,
    autocast="low",
)


def mlp(
    x: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    *,
    activation: str | None = "gelu",
    gate_weight: Tensor | None = None,
    gate_bias: Tensor | None = None,
    residual: Tensor | None = None,
    tf32: bool = False,
    fp8: Literal["row", "tensor"] | None = None,
    main_grad: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """``linear(activation(linear(x, up_weight, up_bias)), down_weight, down_bias) + residual``.

    With a gate it is ``linear(activation(linear(x, gate_weight, gate_bias)) * linear(x, up_weight,
    up_bias), down_weight, down_bias) + residual``.

    Args:
        x: (..., features).
        up_weight: (hidden, features), as of :class:`torch.nn.Linear`. Without ``gate_weight``, it
            may be (2 * hidden, features): the gate's rows, then those of up, with one bias.
        down_weight: (outputs, hidden).
        up_bias: one value per row of ``up_weight``, or None.
        down_bias: (outputs,), or None.
        activation: None, "relu", "gelu", "gelu_tanh", "silu" or "sigmoid".
        gate_weight: (hidden, features), or None.
        gate_bias: (hidden,), or None.
        residual: is added to the result; of its shape.
        tf32: multiply float32 as TF32, see :func:`opforge.linear`.
        fp8: multiply as FP8 with scales per "row" or per "tensor", see :func:`opforge.fp8_linear`.
        main_grad: float32 tensors by the name of a weight, as ``{"up_weight": total, …}``. Each
            backward adds the gradient of that weight to its tensor, see :func:`opforge.linear`.
    """
    code = products.code_of("mlp", activation)
    products.validate_options("mlp", code, tf32, x)  # kernels ignore what is no option
    first = x, up_weight, down_weight, up_bias, down_bias, gate_weight, gate_bias
    if fp8 is not None:
        for name, given in (("tf32", tf32), ("main_grad", main_grad)):
            if given:
                raise ValueError(f"opforge.mlp: {name} and fp8 exclude each other; leave one out")
        tensors = products.lowered((*first, residual))
        validate(*tensors, code, tf32)
        gated = is_gated(up_weight, down_weight, gate_weight)
        return by_fp8.mlp(*tensors, activation, gated, fp8)
    save = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in first)
    y: Tensor
    if not main_grad:
        y = op(*first, residual, code, tf32, save)
        return y
    tensors = products.lowered((*first, residual))
    validate(*tensors, code, tf32)
    weights = {"up_weight": up_weight, "down_weight": down_weight, "gate_weight": gate_weight}
    totals = main_grads.totals_of(main_grad, weights)
    y = main_grads.mlp(composed, composed_backward, totals, tensors, code, tf32)
    return y
