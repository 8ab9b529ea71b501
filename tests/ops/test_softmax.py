# SPDX-License-Identifier: Apache-2.0
"""softmax and log_softmax through their public functions and modules."""

from __future__ import annotations

import math

import pytest
import torch
from op_cases import each_device

import opforge

TWO = ["softmax", "log_softmax"]
each_softmax = pytest.mark.parametrize("name", TWO)
INF = math.inf


def drawn(device, *shape, dtype=torch.float32, seed=3):
    """A leaf with random values, the same ones every time."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device, dtype).requires_grad_()


def gradient(y, x):
    """Of a sum in which every element has its own factor, but for those at -inf."""
    factors = torch.linspace(-1, 2, y.numel()).reshape(y.shape).to(y)
    return torch.autograd.grad(y, x, factors.masked_fill(y == -INF, 0), retain_graph=True)[0]


def agree(got, right, x):
    """Values and gradients."""
    dtype = got.dtype
    torch.testing.assert_close(got, right.to(dtype))
    coarse = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 4 * torch.finfo(dtype).eps)
    found, expected = gradient(got, x), gradient(right, x)
    torch.testing.assert_close(found, expected, atol=coarse, rtol=coarse)


def theirs(name, x):
    return getattr(torch, name)(x.double(), -1)


def empty_row(name):
    """What becomes of a row that nothing is left of."""
    return 0.0 if name == "softmax" else -INF


def beyond(queries, keys, device):
    """Where a key comes after its query."""
    i, j = torch.arange(queries)[:, None], torch.arange(keys)[None]
    return (j > i + keys - queries).to(device)


@each_softmax
@each_device
def test_they_are_those_of_torch(device, name):
    ours = getattr(opforge, name)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        for shape in [(4, 40), (3,), (7, 1), (2, 3, 130), (5, 4, 3, 17), (1, 1)]:
            x = drawn(device, *shape, dtype=dtype)
            y = ours(x)
            assert y.dtype == dtype
            agree(y, theirs(name, x), x)


@each_softmax
@each_device
def test_long_rows(device, name):
    for cols in (1023, 50257, 131072):
        x = drawn(device, 2, cols)
        agree(getattr(opforge, name)(x), theirs(name, x), x)


@each_softmax
@each_device
def test_no_columns_and_no_rows(device, name):
    for shape in [(3, 0), (0, 4), (2, 0, 4), (0,)]:
        for causal in (False, len(shape) > 1):
            x = drawn(device, *shape)
            y = getattr(opforge, name)(x, causal=causal)
            assert y.shape == shape
            assert gradient(y, x).shape == shape


@each_softmax
@each_device
def test_a_scale_is_a_factor(device, name):
    x = drawn(device, 6, 40)
    for scale in (0.125, -2.0, 3, 0.0):
        agree(getattr(opforge, name)(x, scale=scale), theirs(name, x * scale), x)
    one = drawn(device, 9, 1)  # its largest element is itself: nothing is left of the product
    expected = 1.0 if name == "softmax" else 0.0
    assert (getattr(opforge, name)(one, scale=1 / 3) == expected).all()


@each_softmax
@each_device
def test_large_numbers_do_not_overflow_nor_lose_their_differences(device, name):
    x = drawn(device, 4, 64)
    for far in (x + 1000, x - 1000, 200 * x):
        torch.testing.assert_close(getattr(opforge, name)(far), theirs(name, far).float())


@each_softmax
@each_device
def test_masks_broadcast(device, name):
    ours = getattr(opforge, name)
    x = drawn(device, 2, 3, 5, 24)
    shapes = [(2, 1, 5, 24), (5, 24), (24,), (1,), (), (2, 3, 5, 1), (3, 1, 24), (2, 3, 5, 24)]
    for shape in shapes:
        mask = drawn(device, *shape, seed=4).detach()
        agree(ours(x, mask, scale=0.5), theirs(name, 0.5 * x + mask), x)
    wide = drawn(device, 5, 50, seed=4).detach()
    for mask in (wide[:, 1:25], wide[:, ::2][:, :24], wide.t()[:24].t()):
        agree(ours(x, mask), theirs(name, x + mask), x)


@each_softmax
@each_device
def test_a_mask_has_a_dtype_of_its_own(device, name):
    floats = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    for dtype in floats:
        for other in floats:
            x = drawn(device, 2, 6, 40, dtype=dtype)
            mask = drawn(device, 6, 40, dtype=other, seed=4).detach()
            y = getattr(opforge, name)(x, mask)
            assert y.dtype == dtype
            agree(y, theirs(name, x.double() + mask), x)


@each_softmax
@each_device
def test_what_is_masked_by_infinity_gets_nothing(device, name):
    x, hide = drawn(device, 3, 6, 40), torch.arange(40, device=device) % 3 == 1
    mask = torch.where(hide, -INF, 0.0)
    y = getattr(opforge, name)(x, mask)
    agree(y, theirs(name, x + mask), x)
    assert (y[..., hide] == empty_row(name)).all()
    assert not gradient(y, x)[..., hide].any()


@each_softmax
@each_device
def test_a_row_that_is_masked_wholly(device, name):
    """Zeros, or -inf, where torch has NaN; the other rows are not affected."""
    x = drawn(device, 6, 40)
    mask = torch.zeros(6, 1, device=device)
    mask[2] = -INF
    y = getattr(opforge, name)(x, mask)
    assert (y[2] == empty_row(name)).all()
    others = [0, 1, 3, 4, 5]
    torch.testing.assert_close(y[others], theirs(name, x)[others].float())
    found = gradient(y, x)
    assert not found[2].any()
    assert found.isfinite().all()


@each_softmax
@each_device
def test_causal(device, name):
    for batch, queries, keys in [((), 5, 5), ((2,), 7, 33), ((2, 3), 9, 4), ((2,), 1, 6)]:
        x = drawn(device, *batch, queries, keys)
        y = getattr(opforge, name)(x, causal=True, scale=0.5)
        hide = beyond(queries, keys, device)
        right = theirs(name, (0.5 * x).masked_fill(hide, -INF))
        if keys >= queries:
            agree(y, right, x)
        # Otherwise the first queries come before the first key and see nothing.
        right = right.masked_fill(hide.all(-1, keepdim=True), empty_row(name))
        torch.testing.assert_close(y, right.float())
        found = gradient(y, x)
        assert not found[..., hide].any()
        assert found.isfinite().all()


@each_softmax
@each_device
def test_what_causal_hides_is_not_looked_at(device, name):
    """Not even if it is NaN, in either direction."""
    x, hide = drawn(device, 20, 40), beyond(20, 40, device)
    right = getattr(opforge, name)(x, causal=True)
    poisoned = x.detach().masked_fill(hide, math.nan).requires_grad_()
    y = getattr(opforge, name)(poisoned, causal=True)
    assert torch.equal(y, right)
    factors = torch.linspace(-1, 2, x.numel(), device=device).reshape(x.shape)
    (found,) = torch.autograd.grad(y, poisoned, factors.masked_fill(hide, math.nan))
    (expected,) = torch.autograd.grad(right, x, factors)
    assert torch.equal(found, expected)


@each_softmax
@each_device
def test_a_mask_and_causal_together(device, name):
    x, mask = drawn(device, 2, 8, 24), drawn(device, 24, seed=4).detach()
    y = getattr(opforge, name)(x, mask, causal=True)
    v = (x + mask).masked_fill(beyond(8, 24, device), -INF)
    agree(y, theirs(name, v), x)


@each_softmax
@each_device
def test_nan_and_infinities_are_as_in_torch(device, name):
    for value in (math.nan, INF, -INF):
        x = drawn(device, 5, 33).detach()
        x[1, 4] = value
        x[2] = value
        got, right = getattr(opforge, name)(x), theirs(name, x).float()
        torch.testing.assert_close(got, right, equal_nan=True)


@each_softmax
@each_device
def test_any_strides(device, name):
    ours, base = getattr(opforge, name), drawn(device, 4, 5, 6, 48)
    for x in (
        base.permute(2, 0, 1, 3),  # rows without a common stride
        base[..., 1:34],
        base[:, :, :, ::2],
        base.transpose(1, 3),
        base[:, :1, :, :1].expand(4, 5, 6, 1),
        base[:1].expand(4, 5, 6, 48),
    ):
        agree(ours(x), theirs(name, x), base)


@each_softmax
def test_only_the_result_is_saved(name):
    x, mask, kept = drawn("cpu", 6, 40), torch.zeros(6, 1), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape), lambda t: t):
        getattr(opforge, name)(x, mask, scale=0.5)
    assert kept == [(6, 40)]


@each_softmax
def test_the_bits_do_not_depend_on_the_number_of_threads(name):
    x, threads, results = drawn("cpu", 700, 300), torch.get_num_threads(), []
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            y = getattr(opforge, name)(x)
            results.append((y, gradient(y, x)))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@each_softmax
@pytest.mark.parametrize(
    ("shape", "given", "error", "said"),
    [
        ((), {}, ValueError, "x must have at least one dimension, got a scalar"),
        ((5,), {"causal": True}, ValueError, r"are queries and keys; x has shape \(5,\)"),
        (
            (2, 3),
            {"mask": torch.zeros(2)},
            ValueError,
            r"mask must broadcast to the shape of x, \(2, 3\); got \(2,\)",
        ),
        ((2, 3), {"mask": torch.zeros(1, 2, 3)}, ValueError, r"mask must .* got \(1, 2, 3\)"),
        ((2, 3), {"mask": torch.zeros(2, 3) > 0}, TypeError, "so it cannot be bool"),
        ((2, 3), {"mask": torch.zeros(3).int()}, TypeError, "mask has dtype torch.int32"),
        ((2, 3), {"mask": torch.zeros(3, requires_grad=True)}, ValueError, "mask gets no gradient"),
    ],
)
@each_device
def test_errors(device, name, shape, given, error, said):
    given = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    with pytest.raises(error, match=said):
        getattr(opforge, name)(torch.ones(shape, device=device), **given)


def test_a_mask_that_wants_a_gradient_is_fine_where_none_is_taken():
    with torch.no_grad():
        opforge.softmax(torch.ones(2, 3), torch.zeros(3, requires_grad=True))


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
@each_device
@pytest.mark.nightly
def test_modules_take_the_place_of_torchs(device, kind):
    x = drawn(device, 4, 5, 6)
    for dim in (-1, 2, 1, 0, -3):
        given, made = getattr(torch.nn, kind)(dim), getattr(opforge.nn, kind)(dim)
        assert repr(made) == repr(given)
        agree(made(x), given(x), x)
    mask = drawn(device, 6, seed=4).detach()
    made = getattr(opforge.nn, kind)(scale=0.5, causal=True)
    assert repr(made) == f"{kind}(dim=-1, scale=0.5, causal=True)"
    name = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}[kind]
    right = getattr(opforge, name)(x, mask, scale=0.5, causal=True)
    assert torch.equal(made(x, mask), right)


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
def test_modules_say_what_is_wrong(kind):
    made = getattr(opforge.nn, kind)
    with pytest.raises(TypeError, match="dim must be an int, got None"):
        made(None)
    with pytest.raises(IndexError, match=r"dim 2 is out of range for x of shape \(2, 3\)"):
        made(2)(torch.ones(2, 3))
    with pytest.raises(
        ValueError, match="mask and causal need dim to be the last one, but dim is 0"
    ):
        made(0)(torch.ones(2, 3), torch.zeros(3))
    with pytest.raises(
        ValueError, match="mask and causal need dim to be the last one, but dim is 0"
    ):
        made(0, causal=True)(torch.ones(2, 3))
