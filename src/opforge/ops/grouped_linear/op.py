# SPDX-License-Identifier: Apache-2.0
"""grouped_linear: a linear layer for each group of rows, as the experts of a mixture have them.

The rows are sorted by group, and ``offsets`` says where each group ends. On a GPU it stays there:
no kernel is launched for a group, the host never waits, and CUDA graphs can be replayed with other
offsets. Hopper GPUs multiply 16-bit numbers and TF32 on their tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from opforge.op import FLOATS, Backward, Build, Make, Op
from opforge.ops.families import products
from opforge.ops.families.norms import no_tensor
from opforge.registration.arguments import can_look_at


def reference(
    x: Tensor, weights: Tensor, offsets: Tensor, biases: Tensor | None, tf32: bool
) -> Tensor:
    """A product for each group. Rows after the last group give zeros."""
    total, experts = x.shape[0], weights.shape[0]
    layers = list(zip(weights, [None] * experts if biases is None else biases, strict=True))
    y = x.new_zeros(total, weights.shape[1])
    if not _known(offsets):
        for mine, (weight, bias) in zip(_members(offsets, total, experts), layers, strict=True):
            y = torch.where(mine, products.linear(x, weight, bias, tf32), y)
        return y
    sizes = _sizes(offsets, total)
    rows = zip(x.split(sizes), layers, strict=False)
    # Thousands of groups without rows would take long; the first one makes it differentiable.
    parts = [
        products.linear(r, *layer, tf32) for e, (r, layer) in enumerate(rows) if e == 0 or len(r)
    ]
    return torch.cat([*parts, y[total - sizes[-1] :]])


def backward_reference(
    grad_y: Tensor,
    x: Tensor,
    weights: Tensor,
    offsets: Tensor,
    tf32: bool,
    needs_x: bool,
    needs_weights: bool,
    needs_biases: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Two products and a sum for each group."""
    total, experts = x.shape[0], weights.shape[0]
    if _known(offsets):
        sizes = _sizes(offsets, total)
        grads, rows = grad_y.split(sizes)[:-1], x.split(sizes)[:-1]
        parts = [g @ w for g, w in zip(grads, weights, strict=True) if len(g)]
        grad_x = torch.cat([*parts, x.new_zeros(sizes[-1], x.shape[1])])
    else:
        members = list(_members(offsets, total, experts))
        grads, rows = (tuple(torch.where(m, t, 0) for m in members) for t in (grad_y, x))
        grad_x = torch.zeros_like(x)
        for mine, weight in zip(members, weights, strict=True):
            grad_x = torch.where(mine, grad_y @ weight, grad_x)
    nothing, zeros = no_tensor(grad_y), weights.new_zeros(weights.shape[1:])
    grad_weights, grad_biases = torch.zeros_like(weights), weights.new_zeros(weights.shape[:2])
    if experts:
        pairs = zip(grads, rows, strict=True)
        grad_weights = torch.stack([g.t() @ r if len(g) else zeros for g, r in pairs])
        grad_biases = torch.stack([g.sum(0) if len(g) else zeros.sum(1) for g in grads])
    return (
        grad_x if needs_x else nothing,
        grad_weights if needs_weights else nothing,
        grad_biases if needs_biases else nothing,
    )


def _known(offsets: Tensor) -> bool:
    return can_look_at(offsets) and offsets.device.type != "meta"


def _sizes(offsets: Tensor, total: int) -> list[int]:
    """The rows of each group, and those after the last one."""
    sizes, first = [], 0
    for given in offsets.tolist():
        last = min(max(given, first), total)
        sizes.append(last - first)
        first = last
    return [*sizes, total - first]


def _members(offsets: Tensor, total: int, experts: int) -> Iterator[Tensor]:
    """For each group, whether rows belong to it. Their number is not known."""
    row = torch.arange(total, device=offsets.device).unsqueeze(1)
    first = torch.zeros((), dtype=offsets.dtype, device=offsets.device)
    for e in range(experts):
        last = torch.maximum(offsets[e], first)
        yield (row >= first) & (row < last)
        first = last


def validate(
    x: Tensor, weights: Tensor, offsets: Tensor, biases: Tensor | None, tf32: bool
) -> None:
    """Shapes and dtypes match; the values of offsets are not read here."""
    if x.dim() != 2:
        raise ValueError(
            f"opforge.grouped_linear: x must be (rows, features), got shape {tuple(x.shape)}; "
            "x.flatten(0, -2) makes rows of more dims"
        )
    if weights.dim() != 3:
        raise ValueError(
            "opforge.grouped_linear: weights must be (groups, outputs, features), got shape "
            f"{tuple(weights.shape)}; torch.stack makes them of one matrix for each group"
        )
    if x.shape[1] != weights.shape[2]:
        raise ValueError(
            "opforge.grouped_linear: the last dim of x and of weights must agree, got x "
            f"{tuple(x.shape)} and weights {tuple(weights.shape)}; if weights is (groups, "
            "features, outputs), pass weights.transpose(1, 2)"
        )
    if offsets.shape != weights.shape[:1]:
        raise ValueError(
            "opforge.grouped_linear: offsets must have a value for each group, shape "
            f"({weights.shape[0]},) for weights {tuple(weights.shape)}: the row after the group's "
            f"last one; got shape {tuple(offsets.shape)}"
        )
    if biases is not None and biases.shape != weights.shape[:2]:
        raise ValueError(
            f"opforge.grouped_linear: biases must have shape {tuple(weights.shape[:2])}, a row for "
            f"each group of weights {tuple(weights.shape)}; got {tuple(biases.shape)}"
        )
    for name, other in (("weights", weights), ("biases", biases)):
        if other is not None and other.dtype != x.dtype:
            raise TypeError(
                f"opforge.grouped_linear: x is {x.dtype} but {name} is {other.dtype}; "
                f"convert one, as in {name}.to(x.dtype)"
            )
    if tf32 and x.dtype != torch.float32:
        raise TypeError(f"opforge.grouped_linear: tf32=True is for float32, but x is {x.dtype}")


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Groups that are empty, of one row, around a tile's size; all rows in one; rows after them."""

    def ends(*values: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=make.device)

    yield make(40, 72), make(3, 64, 72), ends(9, 9, 40), make(3, 64), False
    yield make(150, 40), make(4, 24, 40), ends(1, 130, 131, 150), None, False
    yield make(21, 24), make(2, 136, 24), ends(8, 15, dtype=torch.int64), make(2, 136), False
    yield make(13, 31), make(3, 29, 31), ends(6, 6, 13), make(3, 29), False  # unaligned
    yield make(9, 16), make(5, 8, 16), ends(0, 0, 9, 9, 9), None, False
    yield make(16, 20).t(), make(2, 16, 24).transpose(1, 2), ends(7, 20), None, False
    biases = make(2, 48)[:, ::2]
    yield make(12, 32)[:, ::2], make(2, 24, 32)[..., ::2], ends(5, 30, 12)[::2], biases, False
    yield make(5, 8), make(1, 3, 8), ends(3), make(1, 3), False
    yield make(0, 8), make(2, 16, 8), ends(0, 0), make(2, 16), False
    yield make(3, 0), make(2, 16, 0), ends(1, 3), make(2, 16), False
    yield make(3, 8), make(2, 0, 8), ends(2, 3), None, False


def sized(
    make: Make, tokens: int, features: int, outputs: int | None = None, experts: int = 8
) -> dict[str, Any]:
    """Groups of about the same size, and groups of which the largest has a third of the tokens."""
    n = features if outputs is None else outputs
    inputs = make(tokens, features), make(experts, n, features)

    def ends(shares: list[int]) -> Tensor:
        upto, total = 0, sum(shares)
        values = [tokens * (upto := upto + share) // total for share in shares]
        return torch.tensor(values, dtype=torch.int32, device=make.device)

    even = ends([97 + 7 * (e % 3) for e in range(experts)])  # no multiples of a tile
    skewed = ends([2 * experts if e == experts // 2 else 1 + e % 7 for e in range(experts)])
    return {"even": (*inputs, even, None, False), "skewed": (*inputs, skewed, None, False)}


def grouped_mm() -> Callable[..., Tensor]:
    """PyTorch's CUTLASS kernel for bfloat16."""
    function = torch._grouped_mm

    def run(
        x: Tensor, weights: Tensor, offsets: Tensor, biases: Tensor | None, tf32: bool
    ) -> Tensor:
        if x.dtype != torch.bfloat16 or biases is not None:
            raise NotImplementedError("torch._grouped_mm is for bfloat16 without biases")
        y: Tensor = function(x, weights.transpose(1, 2), offs=offsets)
        return y

    return run


op = Op(
    schema="grouped_linear(Tensor x, Tensor weights, Tensor offsets, Tensor? biases, bool tf32) "
    "-> Tensor y",
    reference=reference,
    backward=Backward(
        "grouped_linear_backward(Tensor grad_y, Tensor x, Tensor weights, Tensor offsets, "
        "bool tf32, bool needs_x, bool needs_weights, bool needs_biases) "
        "-> (Tensor grad_x, Tensor grad_weights, Tensor grad_biases)",
        backward_reference,
    ),
    dtypes=FLOATS,
    own_dtypes={"offsets": (torch.int32, torch.int64)},
    validate=validate,
    cases=cases,
    operations=lambda x, weights: 2 * x.numel() * weights.shape[1],
    product=lambda x, weights: (x, weights[0].t()),
    sized=sized,
    peers={"torch._grouped_mm": grouped_mm},
    rowwise=True,
    autocast="low",
    build=Build(archs=["9.0a"], by_dtype=["cuda"], on_demand=["units/*.cu"]),
)


def grouped_linear(
    x: Tensor,
    weights: Tensor,
    offsets: Tensor,
    biases: Tensor | None = None,
    *,
    tf32: bool = False,
) -> Tensor:
    """``x[rows] @ weights[e].T + biases[e]`` for the rows of each group ``e``.

    Products are summed in float32 for 16-bit inputs. Rows after the last group give zeros. On a
    GPU, nothing waits for the values of ``offsets``.

    Args:
        x: (rows, features), sorted by group.
        weights: (groups, outputs, features); ``transpose(1, 2)`` of the other order is not copied.
        offsets: (groups,), int32 or int64: the row after the last one of each group, as
            ``torch.cumsum(sizes, 0)`` gives it. On the CPU, an offset that is less than the one
            before or larger than the number of rows raises ValueError. On a GPU, and when compiled,
            it is not seen: the first counts as the one before, the second as the number of rows.
        biases: (groups, outputs), or None.
        tf32: multiply float32 as TF32: with 10 bits of the mantissa, many times as fast.
    """
    if offsets.device.type == "cpu" and can_look_at(offsets) and (x.dim(), offsets.dim()) == (2, 1):
        _check_offsets(offsets, x.shape[0])
    y: Tensor = op(x, weights, offsets, biases, tf32)
    return y


def _check_offsets(offsets: Tensor, rows: int) -> None:
    before = 0
    for e, end in enumerate(offsets.tolist()):
        if not before <= end <= rows:
            raise ValueError(
                f"opforge.grouped_linear: offsets holds {end} at {e}, where only {before} (the end "
                f"of the group before) to {rows} (the rows of x) make sense; it must be the "
                "running sum of the groups' sizes, as of torch.cumsum(sizes, 0)"
            )
        before = end
