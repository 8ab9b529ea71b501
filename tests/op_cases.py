# SPDX-License-Identifier: Apache-2.0
"""The built-in ops' cases, and the comparison of gradients, for the tests of ops."""

from __future__ import annotations

import pytest
import torch
import truth

from opforge import discover
from opforge.op import Op, as_tuple

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
OPS = discover.builtin_names()

each_op = pytest.mark.parametrize("name", OPS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
each_device = pytest.mark.parametrize("device", DEVICES)


def record(name: str) -> Op:
    return discover.find(name)


def differentiable(case: tuple) -> list[torch.Tensor]:
    return [a for a in case if isinstance(a, torch.Tensor)]


def cast(case: tuple, dtype: torch.dtype) -> tuple:
    return tuple(
        a.detach().to(dtype).requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a
        for a in case
    )


def terms(op: Op, case: tuple, output: torch.Tensor) -> int:
    """How many terms an element of an output or gradient may add up."""
    most = max((t.numel() for t in differentiable(case)), default=1)
    return max(most // max(output.numel(), 1), 1)


def largest(tensors: list[torch.Tensor]) -> float:
    return max((float(t.detach().double().abs().max()) for t in tensors if t.numel()), default=1.0)


def compare_gradients(op: Op, case: tuple, grads_for=None) -> None:
    """The kernel's gradients against those of the float64 reference, for one case."""
    run, dtype = op.reference, differentiable(case)[0].dtype
    ours, theirs, exact = cast(case, dtype), cast(case, dtype), cast(case, torch.float64)
    outputs = as_tuple(op(*ours))
    make_grad = grads_for or (lambda o: torch.randn(o.shape, dtype=torch.float64).to(o))
    grads = [make_grad(o) for o in outputs]
    for values, result in ((ours, outputs), (theirs, as_tuple(run(*theirs)))):
        torch.autograd.backward(result, [g.to(r.dtype) for g, r in zip(grads, result, strict=True)])
        assert all(t.grad is not None for t in differentiable(values))
    torch.autograd.backward(as_tuple(run(*exact)), [g.double() for g in grads])
    names = [a.name for a in op.forward.args if a.is_tensor]
    for i, name in enumerate(names):
        got = differentiable(ours)[i].grad
        truth.check(
            got,
            differentiable(theirs)[i].grad,
            differentiable(exact)[i].grad,
            k=3,
            summed=terms(op, case, got),
            scale=largest(grads),
            what=f"grad_{name} of {op.name}",
        )
