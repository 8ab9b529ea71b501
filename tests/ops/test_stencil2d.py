# SPDX-License-Identifier: Apache-2.0
"""stencil2d by hand, at every boundary; what it refuses; images that small cases do not reach."""

from __future__ import annotations

import pytest
import torch
from op_cases import each_device, record

import opforge
from opforge.op import Make
from opforge.sim import stats
from opforge.truth import cases

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
@pytest.mark.nightly
def test_several_tiles(device, dtype, shape):
    for boundary in range(4):
        weight = Make(dtype, device, seed=1)(9 if boundary % 2 else 5)
        case = (Make(dtype, device)(*shape), weight, boundary, 0.5)
        cases.check_forward(record("stencil2d"), case)
        cases.check_backward(record("stencil2d"), cases.as_leaves(case))


# More than eight wide tiles each, so that the shape of the tiles follows the image; in brackets how
# many blocks float32 takes: of 128 threads with vectors, 256 with pixels, 32 for the smallest.
SHAPES = {
    (256, 48): (8, 128),  # just eight wide ones, which stay
    (257, 48): (4, 128),  # 12 vectors, 10 threads below each other
    (257, 124): (9, 128),  # 31
    (257, 128): (9, 128),  # 32: a wide tile's width
    (140, 132): (6, 128),  # 33: two tiles of 18 and 15
    (257, 20): (2, 128),
    (300, 16): (2, 128),  # as narrow as the small tile
    (300, 4): (1, 128),  # one vector
    (66, 4): (3, 128),  # no more than eight tiles, but enough vectors for wide ones
    (60, 4): (8, 32),  # too few
    (300, 7): (38, 32),
    (1, 1200): (3, 128),  # few rows: the threads lie side by side
    (2, 1200): (5, 128),
    (3, 1200): (8, 128),
    (4, 1200): (10, 128),
    (5, 1200): (10, 128),
    (31, 1200): (10, 128),
    (33, 1200): (20, 128),
    (1, 1201): (10, 256),  # not aligned: wide tiles, always
    (3, 1201): (10, 256),
    (300, 33): (10, 256),
    (300, 127): (10, 256),
    (300, 129): (20, 256),
    (9, 28, 28): (9, 128),  # many small images
    (9, 1, 20): (9, 128),
    (9, 33, 33): (18, 256),
}


def _by_day(shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Every fourth shape in one dtype; the others are for the night."""
    return dtype == torch.float32 and list(SHAPES).index(shape) % 4 == 0


@pytest.mark.sim
@each_device
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        pytest.param(s, d, marks=[] if _by_day(s, d) else [pytest.mark.nightly])
        for s in SHAPES
        for d in (torch.float32, torch.bfloat16, torch.float64)
    ],
    ids=str,
)
def test_tiles_of_every_shape(device, dtype, shape):
    for boundary in range(4) if min(shape[-2:]) > 1 else (0, 1, 3):
        weight = Make(dtype, device, seed=1)(5 if boundary % 2 else 9)
        case = (Make(dtype, device)(*shape), weight, boundary, 0.5)
        cases.check_forward(record("stencil2d"), case)
        cases.check_backward(record("stencil2d"), cases.as_leaves(case))


@pytest.mark.nightly
@pytest.mark.sim
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_no_thread_is_left_beside_the_image(shape):
    x, weight = Make(requires_grad=True)(*shape), Make(requires_grad=True, seed=1)(9)
    calls = stats.measure_case(record("stencil2d"), (x, weight, 1, 0.0))  # which looks for races
    launches = [one for call in calls for one in call.launches if "sum_weights" not in one.kernel]
    assert [(one.blocks, one.threads) for one in launches] == 2 * [SHAPES[shape]]


@pytest.mark.sim
@each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(257, 48), (1, 1200), (9, 28, 32)], ids=str)
def test_a_base_that_is_not_aligned(device, dtype, shape):
    whole = Make(dtype, device)(*shape[:-1], shape[-1] + 16)
    for first in (1, 8):
        x = whole[..., first : first + shape[-1]]
        case = (x, Make(dtype, device, seed=1)(9), 3, 0.0)
        cases.check_forward(record("stencil2d"), case)
        cases.check_backward(record("stencil2d"), cases.as_leaves(case))


@pytest.mark.parametrize(
    ("x", "weight", "boundary", "message"),
    [
        ((5,), (5,), "zero", "at least two dims"),
        ((5, 5), (4,), "zero", "weight must have shape"),
        ((5, 1), (5,), "reflect", "needs at least two rows and two columns"),
        ((5, 5), (5,), "mirror", "one of zero, constant, .*, got .mirror"),
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
@pytest.mark.parametrize("shape", [(5, 7), (40, 264), (257, 48), (3, 1200)])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_reaches_nothing_beyond_the_edges(device, shape, value):
    x, weight = Make(device=device)(*shape), Make(device=device, seed=1)(9)
    weight[3] = value  # the left neighbour's: the last column is nobody's
    case = (x, weight, 0, 0.0)
    cases.check_backward(record("stencil2d"), cases.as_leaves(case))
    (grad,) = torch.autograd.grad(opforge.stencil2d(x.requires_grad_(), weight).sum(), x)
    assert grad[:, -1].isfinite().all()
    assert not grad[:, :-1].isfinite().any()
