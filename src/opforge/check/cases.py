# SPDX-License-Identifier: Apache-2.0
"""One case of an op against the float64 reference, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from opforge.check import compare
from opforge.op import Op, as_tuple

Case = tuple[Any, ...]


def is_float(value: Any) -> bool:
    """Whether a value is a floating point tensor."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def differentiable(case: Case) -> list[torch.Tensor]:
    """The floating point tensors of a case."""
    return [a for a in case if is_float(a)]


def cast(case: Case, dtype: torch.dtype) -> Case:
    """A case with its floating point tensors in another dtype, as leaves of their own."""
    return tuple(
        a.detach().to(dtype).requires_grad_(a.requires_grad) if is_float(a) else a for a in case
    )


def terms(case: Case, output: torch.Tensor) -> int:
    """How many terms an element of an output or gradient may add up."""
    most = max((t.numel() for t in differentiable(case)), default=1)
    return max(most // max(output.numel(), 1), 1)


def largest(tensors: list[torch.Tensor]) -> float:
    """The largest magnitude among the tensors."""
    return max((float(t.detach().double().abs().max()) for t in tensors if t.numel()), default=1.0)


def check_forward(op: Op, case: Case) -> tuple[torch.Tensor, ...]:
    """Compare the op's outputs with the truth; returns them."""
    assert op.reference is not None
    outputs = as_tuple(op(*case))
    theirs = as_tuple(op.reference(*case))
    exact = as_tuple(op.reference(*cast(case, torch.float64)))
    for got, torchs, right in zip(outputs, theirs, exact, strict=True):
        scale = largest(differentiable(case))
        compare.check(got, torchs, right, 2, terms(case, got), scale, what=op.name)
    return outputs


def check_backward(
    op: Op, case: Case, grads_for: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> tuple[torch.Tensor, ...]:
    """Compare the op's gradients with the truth; returns them. ``grads_for`` makes grad_outputs."""
    run, dtype = op.reference, differentiable(case)[0].dtype
    assert run is not None
    ours, theirs, exact = cast(case, dtype), cast(case, dtype), cast(case, torch.float64)
    make_grad = grads_for or (lambda o: torch.randn(o.shape, dtype=torch.float64).to(o))
    grads: list[torch.Tensor] = []
    for function, values in ((op, ours), (run, theirs), (run, exact)):
        results = [r for r in as_tuple(function(*values)) if r.requires_grad]
        grads = grads or [make_grad(r) for r in results]
        if results:
            torch.autograd.backward(
                results, [g.to(r.dtype) for g, r in zip(grads, results, strict=True)]
            )
    names = [a.name for a, v in zip(op.forward.args, case, strict=True) if is_float(v)]
    found = []
    for i, name in enumerate(names):
        got, torchs, right = (differentiable(v)[i].grad for v in (ours, theirs, exact))
        what = f"grad_{name} of {op.name}"
        if torchs is None or right is None or got is None:
            if got is not torchs:
                raise compare.Mismatch(f"{what}: only one of the op and its reference has one")
            continue
        compare.check(got, torchs, right, 3, terms(case, got), largest(grads), what)
        found.append(got)
    return tuple(found)
