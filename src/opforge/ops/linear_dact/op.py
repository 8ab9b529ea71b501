# SPDX-License-Identifier: Apache-2.0
"""linear_dact: the gradient before an activation, act'(z) * (grad weight), in one kernel.

It is the first product of the backward of a layer that follows an activation: ``y = linear(act(z),
weight)``. The kernel also returns what else the backward needs of z, which it has read anyway: the
activated values, for the gradient of ``weight``, and the sums of the gradient, for that of a bias
that was added to z.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from opforge.op import FLOATS, Build, Make, Op
from opforge.ops.families import products
from opforge.ops.families.norms import no_tensor


def reference(
    grad: Tensor,
    weight: Tensor | None,
    z: Tensor,
    activation: int,
    gated: bool,
    tf32: bool,
    with_h: bool,
    with_sums: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """A product, a derivative, a value and a sum."""
    if weight is not None:
        grad = products.linear(grad, weight.t(), None, tf32)
    if gated:
        passed, h = products.gate_backward(grad, z, activation), products.gate(z, activation)
    else:
        passed = products.finish_backward(grad, z, activation, 1.0, None, None)
        h = products.finish(z, activation, 1.0, None, None)
    sums = products.rows_of(passed).sum(0)
    return passed, h if with_h else no_tensor(grad), sums if with_sums else no_tensor(grad)


def validate(
    grad: Tensor, weight: Tensor | None, z: Tensor, activation: int, gated: bool, tf32: bool
) -> None:
    """The shapes and dtypes fit."""
    name = "opforge.linear_dact"
    if grad.dim() == 0:
        raise ValueError(f"{name}: grad must have at least one dimension, got a scalar")
    features = grad.shape[-1]
    if weight is not None:
        if weight.dim() != 2 or weight.shape[0] != features:
            raise ValueError(
                f"{name}: weight must be (outputs, features) and grad (..., outputs), got weight "
                f"{tuple(weight.shape)} and grad {tuple(grad.shape)}"
            )
        features = weight.shape[1]
    shape = (*grad.shape[:-1], (2 if gated else 1) * features)
    if z.shape != shape:
        by = "" if weight is None else f" and weight {tuple(weight.shape)}"
        halves = " with gated=True, gate and up beside each other" if gated else ""
        raise ValueError(
            f"{name}: z must have shape {shape} for grad {tuple(grad.shape)}{by}{halves}; "
            f"got {tuple(z.shape)}"
        )
    for what, other in (("weight", weight), ("z", z)):
        if other is not None and other.dtype != grad.dtype:
            raise TypeError(
                f"{name}: grad is {grad.dtype} but {what} is {other.dtype}; "
                f"convert one, as in {what}.to(grad.dtype)"
            )
    products.validate_options("linear_dact", activation, tf32, grad)


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Sizes around a tile's, aligned or not; gated or not; without a product; every activation."""
    relu, gelu, tanh, silu, sigmoid = (
        products.NAMES.index(n) for n in ("relu", "gelu", "gelu_tanh", "silu", "sigmoid")
    )
    both = True, True
    yield make(72, 40), make(40, 136), make(72, 136), gelu, False, False, *both
    yield make(2, 33, 24), make(24, 64), make(2, 33, 128), silu, True, False, *both
    yield make(130, 64), make(64, 72), make(130, 72), relu, False, False, False, True
    yield make(9, 136), make(136, 264), make(9, 264), tanh, False, False, True, False
    yield make(66, 16), make(16, 72), make(66, 144), tanh, True, False, True, False
    yield make(17, 8), make(8, 24), make(17, 24), sigmoid, False, False, False, False
    yield make(7, 31), make(31, 29), make(7, 29), gelu, False, False, *both  # unaligned
    yield make(7, 30), make(30, 27), make(7, 54), gelu, True, False, *both
    yield make(40, 24), None, make(40, 48), sigmoid, True, False, False, True
    yield make(3, 24), None, make(3, 24), products.NONE, False, False, *both
    yield make(6, 66)[:, 1:], None, make(6, 130), relu, True, False, *both
    yield make(24, 40).t(), make(48, 24).t(), make(40, 96)[:, ::2], silu, False, False, *both
    yield make(16, 48)[:, ::2], make(24, 32), make(64, 16).t(), silu, True, False, *both
    yield make(0, 8), make(8, 16), make(0, 16), gelu, False, False, *both
    yield make(3, 0), make(0, 16), make(3, 32), silu, True, False, *both
    yield make(5), make(5, 3), make(3), gelu, False, False, *both


def sized(make: Make, rows: int, cols: int, features: int | None = None) -> dict[str, Any]:
    """``rows`` rows of ``cols`` features of h, from ``features`` outputs or as many."""
    k = cols if features is None else features
    grad, weight, z, pair = make(rows, k), make(k, cols), make(rows, cols), make(rows, 2 * cols)
    gelu, silu = products.NAMES.index("gelu"), products.NAMES.index("silu")
    return {
        "gelu": (grad, weight, z, gelu, False, False, True, False),
        "silu, gated": (grad, weight, pair, silu, True, False, True, False),
    }


def factors(grad: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """The two matrices that are multiplied, where there is a product."""
    assert weight is not None
    return products.rows_of(grad), weight


op = Op(
    schema="linear_dact(Tensor grad, Tensor? weight, Tensor z, int activation, bool gated, "
    "bool tf32, bool with_h, bool with_sums) -> (Tensor passed, Tensor h, Tensor sums)",
    reference=reference,
    dtypes=FLOATS,
    validate=validate,
    cases=cases,
    operations=lambda grad, weight: 0 if weight is None else 2 * grad.numel() * weight.shape[1],
    product=factors,
    sized=sized,
    rowwise=True,
    autocast="promote",
    build=Build(archs=["9.0a"], by_dtype=["cuda"], on_demand=["units/*.cu"]),
)


def linear_dact(
    grad: Tensor,
    weight: Tensor | None,
    z: Tensor,
    activation: str | None,
    *,
    gated: bool = False,
    tf32: bool = False,
    with_h: bool = False,
    with_sums: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of ``z``, given that of ``linear(h, weight)`` with ``h = activation(z)``.

    It is what :func:`opforge.mlp` calls in its backward, for autograd functions of your own.

    Args:
        grad: (..., outputs), the gradient of the layer's result.
        weight: (outputs, features), as of :class:`torch.nn.Linear`. Without one, ``grad`` is the
            gradient of h itself.
        z: (..., features), what was activated. If ``gated``, (..., 2 * features).
        activation: None, "relu", "gelu", "gelu_tanh", "silu" or "sigmoid".
        gated: ``h = activation(gate) * up``, where the rows of ``z`` hold gate, then up.
        tf32: multiply float32 as TF32, see :func:`opforge.linear`.
        with_h: return ``h`` as well.
        with_sums: return the sums of the gradient over all rows: that of a bias.

    Returns:
        The gradient of ``z``, ``h`` and the sums. What is not asked for is an empty tensor.
    """
    code = products.code_of("linear_dact", activation)
    passed, h, sums = op(grad, weight, z, code, gated, tf32, with_h, with_sums)
    return passed, h, sums
