# SPDX-License-Identifier: Apache-2.0
"""The error rule: every honest way to compute a formula passes, whatever is biased does not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from opforge import discover
from opforge.truth import cases, compare
from opforge.truth.cases import check_backward, check_forward
from opforge.truth.rounding import RandomRounding

NORM = discover.find("rms_norm")
SUM = discover.find("reduce_sum")
SOFTMAX = discover.find("softmax")
GELU = discover.find("bias_gelu")


def norm_case(x, weight=None):
    return x, weight, None, None, 1e-6, 0.0, 0, 0, 0.0, False


def normal(*shape, dtype=torch.float32, seed=0):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.to(dtype)


def passes(op, case, result):
    check_forward(op, case, run=lambda *_: result)


def fails(op, case, result):
    with pytest.raises(compare.Mismatch, match="is allowed"):
        check_forward(op, case, run=lambda *_: result)


# --- sums in any order ----------------------------------------------------------------------------


def one_by_one(x):
    return torch.from_numpy(np.add.accumulate(x.numpy(), axis=-1)[..., -1].copy())


def in_lanes(x, lanes=32):
    parts = torch.nn.functional.pad(x, (0, -x.shape[-1] % lanes)).unflatten(-1, (-1, lanes))
    return one_by_one(one_by_one(parts.transpose(-1, -2).contiguous()))


ORDERS = {
    "one by one": one_by_one,
    "backwards": lambda x: one_by_one(x.flip(-1).contiguous()),
    "in lanes": in_lanes,
    "in pairs": lambda x: x.sum(-1),
    "shuffled": lambda x: one_by_one(x[..., torch.randperm(x.shape[-1])]),
}
TERMS = {
    "normal": lambda n: normal(7, n),
    "equal": lambda n: torch.full((3, n), 0.1),
    "alternating": lambda n: normal(3, n) + 1000 * (1 - 2 * (torch.arange(n) % 2)),
    "sorted": lambda n: normal(3, n).sort(-1).values,
    "positive": lambda n: normal(3, n).abs(),
    "one large": lambda n: torch.cat([torch.full((2, 1), 1e6), normal(2, n - 1)], -1),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("n", [2, 33, 1025, 20_011])
def test_a_sum_in_any_order_passes(order, terms, n):
    x = TERMS[terms](n)
    passes(SUM, (x, [-1], False), ORDERS[order](x))


@pytest.mark.parametrize("n", [33, 1025, 20_011])
def test_a_sum_in_16_bits_fails(n):
    x = normal(7, n, dtype=torch.bfloat16)
    total = torch.zeros(7, dtype=torch.bfloat16)
    for i in range(n if n < 2000 else 2000):
        total += x[:, i]
    fails(SUM, (x[:, :2000], [-1], False), total)


def test_a_sum_that_leaves_out_a_term_fails():
    x = normal(5, 1025)
    fails(SUM, (x, [-1], False), x[:, :-1].sum(-1))


# --- formulas -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("seed", range(10))
def test_other_honest_formulas_pass(dtype, seed):
    x, w = normal(3, 65, dtype=dtype, seed=seed), normal(65, dtype=dtype, seed=100 + seed)
    wide = torch.promote_types(dtype, torch.float32)
    v, u = x.to(wide), w.to(wide)
    scale = 1 / ((v * v).sum(-1, keepdim=True) / 65 + 1e-6).sqrt()
    empty = x.new_empty(0)
    passes(NORM, norm_case(x, w), ((v * (u * scale)).to(dtype), empty))
    passes(NORM, norm_case(x, w), ((v * scale * u).to(dtype), empty))
    e = torch.exp2((v - v.amax(-1, keepdim=True)) * 1.4426950408889634)
    passes(SOFTMAX, (x, None, 1.0, False), (e * (1 / e.sum(-1, keepdim=True))).to(dtype))


def test_one_element_is_no_matter_of_luck():
    """PyTorch's error in a tensor of one element may be nothing at all."""
    for seed in range(200):
        x = normal(1, 1, seed=seed)
        scale = 1 / (x * x + 1e-6).sqrt()
        passes(NORM, norm_case(x), (x * scale, x.new_empty(0)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_outputs_flushed_to_zero_fail(dtype):
    """Beside large ones, which an error relative to the largest would have hidden."""
    x = normal(4, 257, dtype=dtype)
    y = torch.softmax(x * 8, -1)
    assert float(y.max()) > 0.5
    fails(SOFTMAX, (x * 8, None, 1.0, False), y.masked_fill(y < 0.05, 0))


def test_small_gradients_flushed_to_zero_fail():
    x, bias = normal(9, 33).requires_grad_(), normal(33).requires_grad_()
    grad = normal(9, 33) * torch.logspace(-8, 0, 33)

    class Flushing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, bias):
            ctx.save_for_backward(x, bias)
            return GELU.reference(x, bias, True)

        @staticmethod
        def backward(ctx, grad):
            found = GELU.backward.reference(grad, *ctx.saved_tensors, True)
            return tuple(g.masked_fill(g.abs() < 1e-5, 0) for g in found)

    def run(x, bias, tanh):
        return Flushing.apply(x, bias)

    with pytest.raises(compare.Mismatch, match="grad_x of bias_gelu"):
        check_backward(GELU, (x, bias, True), lambda o: grad, run=run)


def test_truncation_fails():
    x, y = normal(100, dtype=torch.bfloat16), normal(100, dtype=torch.bfloat16, seed=1)
    total = x.float() + y.float()
    cut = (total.view(torch.int32) & ~0xFFFF).view(torch.float32).bfloat16()
    add = discover.find("vector_add")
    fails(add, (x, y), cut)
    passes(add, (x, y), total.bfloat16())


def test_cancellation_by_a_worse_formula_fails():
    """E[x²] - E[x]² where the mean is a thousand times the spread."""
    norm = discover.find("layer_norm")
    x = normal(4, 256) + 1000
    names = [a.name for a in norm.forward.args]
    values = {"x": x, "weight": None, "bias": None, "residual": None, "seed": None, "eps": 1e-5}
    case = tuple(values.get(n, 0.0 if n == "p" else False if n == "save" else 0) for n in names)
    variance = (x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2
    y = (x - x.mean(-1, keepdim=True)) * torch.rsqrt(variance.clamp(min=0) + 1e-5)
    fails(norm, case, (y, x.new_empty(0)))
    passes(norm, case, (torch.nn.functional.layer_norm(x, (256,)), x.new_empty(0)))


def test_complex_results_are_compared_by_parts():
    truth = torch.complex(normal(50), normal(50, seed=1))

    class Product:
        name, rowwise, pointwise, backward = "product", False, True, None
        forward = discover.find("vector_add").forward
        outputs = forward.returns
        reference = staticmethod(torch.mul)

    passes(Product, (truth, truth.flip(0)), truth * truth.flip(0))
    with pytest.raises(compare.Mismatch, match="is allowed"):
        passes(Product, (truth, truth.flip(0)), truth * truth.flip(0) * (1 + 1e-5))


def test_an_op_of_which_nothing_is_known_may_add_up():
    """A convolution's gradient has no decomposition; its spread must be that of a sum."""
    x, w = normal(2, 3, 20, 20).requires_grad_(), normal(4, 3, 3, 3, seed=1).requires_grad_()

    class Convolution:
        name, rowwise, pointwise, backward = "convolution", False, False, None
        forward = discover.find("vector_add").forward
        outputs = forward.returns
        reference = staticmethod(torch.nn.functional.conv2d)

    truth = cases.true_gradients(Convolution, (x, w), [normal(2, 4, 18, 18)])
    gradients = [g.detach() for g in truth._torchs]
    truth.check(gradients)
    with pytest.raises(compare.Mismatch, match="grad_b of convolution"):
        truth.check([gradients[0], gradients[1] * (1 + 1e-4)])


# --- the ends of the range ------------------------------------------------------------------------


class Products:
    """``a @ b``, for which an op of two tensors and one result lends its schema."""

    name, rowwise, pointwise, backward = "products", True, False, None
    forward = discover.find("vector_add").forward
    outputs = forward.returns
    reference = staticmethod(torch.mm)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_that_are_subnormal_are_rounded_one_by_one(dtype):
    tiny = torch.finfo(dtype).smallest_normal
    a, b = normal(16, 400, dtype=dtype), normal(400, 16, dtype=dtype, seed=1) * (tiny / 4096)
    total = (a.unsqueeze(2) * b).sum(1)  # of subnormal terms sums are exact
    passes(Products, (a, b), total)
    least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    fails(Products, (a, b), total + 512 * least)


@pytest.mark.parametrize("size", [1e-305, 1e300])
def test_the_spread_at_the_ends_of_float64_is_neither_zero_nor_endless(size):
    """The squares of such differences underflow or overflow."""
    a, b = normal(16, 4000, dtype=torch.float64), normal(4000, 16, dtype=torch.float64, seed=1)
    backwards = torch.zeros(16, 16, dtype=torch.float64)
    for i in range(4000):
        backwards += a[:, i : i + 1] * (b[i] * size)
    passes(Products, (a, b * size), backwards)
    fails(Products, (a, b * size), backwards * (1 + 1e-9))


def test_an_op_named_like_one_of_torchs_is_not_taken_for_it():
    x = normal(3, 5, dtype=torch.float64)
    with RandomRounding(torch.float32, 1):
        moved = discover.find("cumsum")(x, -1, False, False)
    assert not torch.equal(moved, x.cumsum(-1))
    torch.testing.assert_close(moved, x.cumsum(-1), rtol=1e-5, atol=1e-5)


# --- gradients by the book ------------------------------------------------------------------------


class ByTheBook(torch.autograd.Function):
    """group_norm of one channel per group; its gradient takes it that what is normalised adds up
    to 0, which it does but for the rounding of the mean."""

    @staticmethod
    def forward(ctx, x, naive):
        ctx.save_for_backward(x)
        ctx.naive = naive
        return torch.nn.functional.group_norm(x, x.shape[1])

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        mean = x.mean((2, 3), keepdim=True)
        away = (x - mean).square().mean((2, 3), keepdim=True)
        if ctx.naive:
            away = (x.square().mean((2, 3), keepdim=True) - mean.square()).clamp(min=0)
        rstd = torch.rsqrt(away + 1e-5)
        normed = (x - mean) * rstd
        inner = (grad * normed).mean((2, 3), keepdim=True)
        return (grad - grad.mean((2, 3), keepdim=True) - normed * inner) * rstd, None


@pytest.mark.parametrize("seed", range(4))
def test_the_gradient_of_a_norm_may_have_the_error_of_its_mean(seed):
    norm = discover.find("group_norm")
    x = (normal(4, 6, 4, 5, seed=seed) + 1000).requires_grad_()
    case = x, None, None, 6, 1e-5, False, True
    grad = normal(4, 6, 4, 5, seed=seed + 10)
    check_backward(norm, case, lambda _: grad, run=lambda *a: ByTheBook.apply(a[0], False))
    with pytest.raises(compare.Mismatch, match="is allowed"):
        check_backward(norm, case, lambda _: grad, run=lambda *a: ByTheBook.apply(a[0], True))
