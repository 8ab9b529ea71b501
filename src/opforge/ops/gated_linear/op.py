# SPDX-License-Identifier: Apache-2.0
"""gated_linear: y = act(x gate_weightᵀ) * (x up_weightᵀ), both products in one kernel.

The weights are two tensors, or one whose rows hold both. For gradients it keeps both products, the
arguments of the gate, beside each other in z. The backward is made of other ops: the gradients of
the gate, then the products of a linear layer whose result is z.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import opforge
from opforge.op import FLOATS, Backward, Build, Make, Op
from opforge.ops.families import product_gradients, products
from opforge.ops.families.norms import no_tensor


def arguments_of_gate(
    x: Tensor,
    gate_weight: Tensor,
    up_weight: Tensor | None,
    gate_bias: Tensor | None,
    up_bias: Tensor | None,
    tf32: bool,
) -> Tensor:
    """Both products, beside each other."""
    z = products.linear(x, gate_weight, gate_bias, tf32)
    if up_weight is None:
        return z
    return torch.cat([z, products.linear(x, up_weight, up_bias, tf32)], -1)


def reference(
    x: Tensor,
    gate_weight: Tensor,
    up_weight: Tensor | None,
    gate_bias: Tensor | None,
    up_bias: Tensor | None,
    activation: int,
    tf32: bool,
    save: bool,
) -> Tensor:
    """The formula."""
    z = arguments_of_gate(x, gate_weight, up_weight, gate_bias, up_bias, tf32)
    return products.gate(z, activation)


def z(
    x: Tensor,
    gate_weight: Tensor,
    up_weight: Tensor | None,
    gate_bias: Tensor | None,
    up_bias: Tensor | None,
    tf32: bool,
    save: bool,
) -> Tensor:
    """The arguments of the gate, if the backward needs them."""
    if not save:
        return no_tensor(x)
    return arguments_of_gate(x, gate_weight, up_weight, gate_bias, up_bias, tf32)


def backward_reference(
    grad_y: Tensor,
    x: Tensor,
    gate_weight: Tensor,
    up_weight: Tensor | None,
    gate_bias: Tensor | None,
    up_bias: Tensor | None,
    z: Tensor,
    activation: int,
    tf32: bool,
    needs_x: bool,
    needs_gate_weight: bool,
    needs_up_weight: bool,
    needs_gate_bias: bool,
    needs_up_bias: bool,
) -> tuple[Tensor, ...]:
    """Through the gate, then those of a linear layer for each weight."""
    z = arguments_of_gate(x, gate_weight, up_weight, gate_bias, up_bias, tf32)
    passed = products.gate_backward(grad_y, z, activation)
    nothing = no_tensor(grad_y)
    rows = products.rows_of(x)
    parts = [passed] if up_weight is None else list(passed.chunk(2, -1))
    weights = [gate_weight] if up_weight is None else [gate_weight, up_weight]
    grad_x = products.through(parts, weights) if needs_x else nothing

    def of_weight(i: int, needed: bool) -> Tensor:
        return products.rows_of(parts[i]).t() @ rows if needed else nothing

    def of_bias(i: int, needed: bool) -> Tensor:
        return products.rows_of(parts[i]).sum(0) if needed else nothing

    return (
        grad_x,
        of_weight(0, needs_gate_weight),
        of_weight(-1, needs_up_weight),
        of_bias(0, needs_gate_bias),
        of_bias(-1, needs_up_bias),
    )


def composed_backward(
    grad_y: Tensor,
    x: Tensor,
    gate_weight: Tensor,
    up_weight: Tensor | None,
    gate_bias: Tensor | None,
    up_bias: Tensor | None,
    z: Tensor,
    activation: int,
    tf32: bool,
    needs_x: bool,
    needs_gate_weight: bool,
    needs_up_weight: bool,
    needs_gate_bias: bool,
    needs_up_bias: bool,
) -> tuple[Tensor, ...]:
    """One pass through the gate, then products."""
    if z.numel() == 0:  # not kept, or there is nothing to keep
        z = arguments_of_gate(x, gate_weight, up_weight, gate_bias, up_bias, False)
    sums = needs_gate_bias or needs_up_bias
    passed, _, grad_bias = product_gradients.below("linear_dact")(
        grad_y, None, z, activation, True, tf32, False, sums
    )
    return product_gradients.of_gated(
        *(passed, grad_bias, x, gate_weight, up_weight, tf32, needs_x),
        (needs_gate_weight, needs_up_weight),
        (needs_gate_bias, needs_up_bias),
    )


def validate(
    x: Tensor,
    gate_weight: Tensor,
    up_weight: Tensor | None,
    gate_bias: Tensor | None,
    up_bias: Tensor | None,
    activation: int,
    tf32: bool,
) -> None:
    """The shapes and dtypes fit."""
    products.validate_gated("gated_linear", x, gate_weight, up_weight, gate_bias, up_bias)
    products.validate_options("gated_linear", activation, tf32, x)


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Sizes around a tile's, aligned or not; packed and separate; empty, strided.

    Many features go with relu and no activation, so that other gates stay near 0. Where a gate is
    below -5.5, torch's gelu is 0, and times infinity NaN; and slopes near 0 make gradients
    subnormal, which the bfloat16 products of CPUs take as 0.
    """
    relu, gelu, tanh, silu, sigmoid = (
        products.NAMES.index(n) for n in ("relu", "gelu", "gelu_tanh", "silu", "sigmoid")
    )
    kept = False, True
    yield make(64, 5), make(136, 5), make(136, 5), None, None, silu, *kept
    yield make(2, 9, 3), make(48, 3), None, make(48), None, gelu, *kept
    yield make(130, 64), make(72, 64), make(72, 64), make(72), make(72), relu, *kept
    yield make(9, 136), make(528, 136), None, None, None, products.NONE, False, False
    yield make(17, 4), make(8, 4), make(8, 4), None, make(8), sigmoid, *kept
    yield make(7, 3), make(29, 3), make(29, 3), make(29), make(29), silu, *kept  # unaligned
    yield make(7, 8), make(54, 8), None, make(54), None, silu, *kept
    yield make(40, 24).t(), make(40, 32).t(), make(40, 32).t(), make(64)[::2], None, relu, *kept
    yield make(16, 48)[:, ::2], make(64, 48)[:, ::2], None, make(128)[::2], None, relu, *kept
    yield make(5), make(3, 5), make(3, 5), make(3), None, products.NONE, *kept
    yield make(70, 2), make(24, 2), make(24, 2), make(24), None, tanh, *kept
    yield make(0, 8), make(32, 8), None, make(32), None, silu, *kept
    yield make(3, 0), make(16, 0), make(16, 0), make(16), None, silu, *kept
    yield make(3, 8), make(0, 8), None, None, None, gelu, *kept


def sized(make: Make, rows: int, cols: int, features: int | None = None) -> dict[str, Any]:
    """``rows`` rows to ``cols`` outputs, from ``features`` features or as many as outputs."""
    k, silu = cols if features is None else features, products.NAMES.index("silu")
    x = make(rows, k)
    options = silu, False, make.requires_grad
    return {
        "packed": (x, make(2 * cols, k), None, None, None, *options),
        "separate": (x, make(cols, k), make(cols, k), None, None, *options),
    }


def unfused() -> Callable[..., Any]:
    """The products of torch, and the gate in a pass by an op of opforge."""
    gates = {"silu": opforge.swiglu, "gelu": opforge.geglu, "relu": opforge.reglu}

    def run(
        x: Tensor,
        gate_weight: Tensor,
        up_weight: Tensor | None,
        gate_bias: Tensor | None,
        up_bias: Tensor | None,
        activation: int,
    ) -> Tensor:
        gate = gates.get(products.NAMES[activation] or "")
        if gate is None:
            raise NotImplementedError(f"no op for the gate {products.NAMES[activation]}")
        linear = torch.nn.functional.linear
        up = None if up_weight is None else linear(x, up_weight, up_bias)
        y: Tensor = gate(linear(x, gate_weight, gate_bias), up)
        return y

    return run


def both_weights(x: Tensor, gate_weight: Tensor, up_weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """The product of both weights at once."""
    weight = gate_weight if up_weight is None else torch.cat([gate_weight, up_weight])
    return products.rows_of(x), weight.t()


op = Op(
    schema="gated_linear(Tensor x, Tensor gate_weight, Tensor? up_weight, Tensor? gate_bias, "
    "Tensor? up_bias, int activation, bool tf32, bool save) -> (Tensor y, Tensor z)",
    reference=reference,
    statistics={"z": z},
    backward=Backward(
        "gated_linear_backward(Tensor grad_y, Tensor x, Tensor gate_weight, Tensor? up_weight, "
        "Tensor? gate_bias, Tensor? up_bias, Tensor z, int activation, bool tf32, bool needs_x, "
        "bool needs_gate_weight, bool needs_up_weight, bool needs_gate_bias, bool needs_up_bias) "
        "-> (Tensor grad_x, Tensor grad_gate_weight, Tensor grad_up_weight, "
        "Tensor grad_gate_bias, Tensor grad_up_bias)",
        backward_reference,
        composed=composed_backward,
    ),
    dtypes=FLOATS,
    validate=validate,
    cases=cases,
    operations=lambda x, gate_weight, up_weight: (
        (2 if up_weight is None else 4) * x.numel() * gate_weight.shape[0]
    ),
    product=both_weights,
    sized=sized,
    peers={"products + gate": unfused},
    rowwise=True,
    autocast="low",
    build=Build(archs=["9.0a"], by_dtype=["cuda"], on_demand=["units/*.cu"]),
)


def gated_linear(
    x: Tensor,
    gate_weight: Tensor,
    up_weight: Tensor | None = None,
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    activation: str | None = "silu",
    *,
    tf32: bool = False,
) -> Tensor:
    """``activation(x @ gate_weight.T + gate_bias) * (x @ up_weight.T + up_bias)``.

    Without ``up_weight``, the rows of ``gate_weight`` hold both, gate first, and so does
    ``gate_bias``. The gradient of such a weight comes in one piece, too.

    Args:
        x: (..., features).
        gate_weight: (outputs, features), as of :class:`torch.nn.Linear`; packed,
            (2 * outputs, features).
        up_weight: of the shape of ``gate_weight``, or None.
        gate_bias: one value per row of ``gate_weight``, or None.
        up_bias: the same for ``up_weight``.
        activation: "silu" (SwiGLU), "gelu", "gelu_tanh" (GeGLU), "relu" (ReGLU), "sigmoid" (GLU),
            or None.
        tf32: multiply float32 as TF32, see :func:`opforge.linear`.
    """
    code = products.code_of("gated_linear", activation)
    products.validate_options("gated_linear", code, tf32, x)  # kernels ignore what is no option
    tensors = x, gate_weight, up_weight, gate_bias, up_bias
    save = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    y: Tensor = op(*tensors, code, tf32, save)
    return y
