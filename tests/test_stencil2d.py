# SPDX-License-Identifier: Apache-2.0
"""stencil2d by hand, at every boundary; what it refuses; images that small cases do not reach."""

from __future__ import annotations

import pytest
import torch
from op_cases import each_device, record

import opforge
from opforge.check import cases
from opforge.op import Make

IMAGE = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
# Left neighbour plus ten times the one above.
WEIGHT = [0.0, 10.0, 0.0, 1.0, 0.0]


@pytest.mark.sim
@each_device
@pytest.mark.parametrize(
    ("boundary", "expected"),
    [
        ("zero", [[0, 1, 2], [10, 24, 35]]),
        ("constant", [[77, 71, 72], [17, 24, 35]]),
        ("replicate", [[11, 21, 32], [14, 24, 35]]),
        ("reflect", [[42, 51, 62], [15, 24, 35]]),
        ("periodic", [[43, 51, 62], [16, 24, 35]]),
    ],
)
def test_boundaries(device, boundary, expected):
    x, weight = torch.tensor(IMAGE, device=device), torch.tensor(WEIGHT, device=device)
    assert opforge.stencil2d(x, weight, boundary, 7.0).tolist() == expected
    nine = torch.tensor([0.0, 10.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], device=device)
    assert opforge.stencil2d(x, nine, boundary, 7.0).tolist() == expected


@pytest.mark.sim
@each_device
@pytest.mark.parametrize("wanted", ["x", "weight"])
def test_one_gradient_alone_is_the_same(device, wanted):
    x, weight = Make()(2, 40, 48).to(device), Make(seed=1)(9).to(device)
    both = torch.autograd.grad(
        opforge.stencil2d(x.requires_grad_(), weight.requires_grad_(), "reflect").sum(), (x, weight)
    )
    alone = x if wanted == "x" else weight
    (x if wanted == "weight" else weight).requires_grad_(False)
    (grad,) = torch.autograd.grad(opforge.stencil2d(x, weight, "reflect").sum(), alone)
    assert torch.equal(grad, both[0 if wanted == "x" else 1])


@pytest.mark.sim
@each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(70, 520), (2, 97, 264), (70, 521), (70, 16), (3, 9, 17)])
def test_several_tiles(device, dtype, shape):
    for boundary in range(4):
        weight = Make(dtype, device, seed=1)(9 if boundary % 2 else 5)
        case = (Make(dtype, device)(*shape), weight, boundary, 0.5)
        cases.check_forward(record("stencil2d"), case)
        cases.check_backward(record("stencil2d"), cases.as_leaves(case))


@pytest.mark.parametrize(
    ("x", "weight", "boundary", "message"),
    [
        ((5,), (5,), "zero", "at least two dims"),
        ((5, 5), (4,), "zero", "weight must have shape"),
        ((5, 1), (5,), "reflect", "needs two rows and two columns"),
        ((5, 5), (5,), "mirror", "none of zero, constant"),
    ],
)
def test_refusals(x, weight, boundary, message):
    with pytest.raises(ValueError, match=message):
        opforge.stencil2d(torch.ones(x), torch.ones(weight), boundary)


def test_the_weight_may_be_float32_and_nothing_else():
    x = torch.ones(4, 4, dtype=torch.bfloat16)
    assert opforge.stencil2d(x, torch.ones(5)).dtype == torch.bfloat16
    with pytest.raises(TypeError, match=r"weight is torch\.float16"):
        opforge.stencil2d(x, torch.ones(5, dtype=torch.float16))


@pytest.mark.sim
@each_device
@pytest.mark.parametrize("shape", [(5, 7), (40, 264)])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_reaches_nothing_beyond_the_edges(device, shape, value):
    x, weight = Make(device=device)(*shape), Make(device=device, seed=1)(9)
    weight[3] = value  # the left neighbour's: the last column is nobody's
    case = (x, weight, 0, 0.0)
    cases.check_backward(record("stencil2d"), cases.as_leaves(case))
    (grad,) = torch.autograd.grad(opforge.stencil2d(x.requires_grad_(), weight).sum(), x)
    assert grad[:, -1].isfinite().all()
    assert not grad[:, :-1].isfinite().any()
