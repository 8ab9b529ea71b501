# SPDX-License-Identifier: Apache-2.0
"""group_norm through its public function and its module."""

from __future__ import annotations

import pytest
import torch
from op_cases import each_device, each_mode, record
from torch.nn import functional

import opforge
from opforge import sim
from opforge.truth import cases

LAYOUTS = [torch.contiguous_format, torch.channels_last]
each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=["planes", "pixels"])
each_activation = pytest.mark.parametrize("activation", [None, "silu"])


def drawn(device, *shapes, dtype=torch.float32):
    """Leaves with random values, the same ones every time."""
    generator = torch.Generator().manual_seed(3)
    made = [torch.randn(s, generator=generator).to(device, dtype) for s in shapes]
    return [m.requires_grad_() for m in made]


def images(device, layout, *shape, dtype=torch.float32):
    (x,) = drawn(device, shape, dtype=dtype)
    return x.detach().contiguous(memory_format=layout).requires_grad_()


def theirs(x, groups, weight=None, bias=None, activation=None, eps=1e-5):
    """PyTorch's two, in float64."""
    params = [None if p is None else p.double() for p in (weight, bias)]
    if params[0] is None and params[1] is not None:  # PyTorch has no backward for it
        params[0] = torch.ones_like(params[1])
    z = functional.group_norm(x.double(), groups, *params, eps)
    return functional.silu(z) if activation == "silu" else z


def gradients(result, inputs):
    """Of a sum in which every element has its own factor."""
    factors = torch.linspace(-1, 2, result.numel()).reshape(result.shape).to(result)
    return torch.autograd.grad(result, inputs, factors, retain_graph=True)


def agree(got, right, inputs):
    """Values and gradients; of a parameter each is a sum of many terms, rounded as it grows."""
    torch.testing.assert_close(got, right.to(got.dtype))
    for found, expected in zip(gradients(got, inputs), gradients(right, inputs), strict=True):
        terms = got.numel() / expected.numel()
        atol = 2e-5 + 2e-7 * float(expected.abs().max()) + 2**-25 * terms
        torch.testing.assert_close(found, expected, atol=atol, rtol=1e-4)


# Vectors and what is left over of them, one and several blocks of pixels, several slabs of groups.
SHAPES = [
    ((2, 6, 3, 5), 3),
    ((3, 24, 4, 4), 24),
    ((2, 10, 5, 7), 1),
    ((1, 16, 20, 21), 4),
    ((2, 160, 30, 33), 20),
]


@each_device
@each_layout
@each_activation
@pytest.mark.parametrize(("shape", "groups"), SHAPES, ids=str)
def test_it_is_that_of_torch(device, layout, activation, shape, groups):
    x = images(device, layout, *shape)
    weight, bias = drawn(device, shape[1:2], shape[1:2])
    got = opforge.group_norm(x, groups, weight, bias, activation=activation)
    assert got.is_contiguous(memory_format=layout)
    agree(got, theirs(x, groups, weight, bias, activation), [x, weight, bias])
    assert gradients(got, [x])[0].is_contiguous(memory_format=layout)


@each_device
@each_activation
def test_any_dims_and_strides(device, activation):
    (base,) = drawn(device, (4, 12, 10, 9))
    for x in (
        base[:, :, 0, 0].contiguous(),
        base[:, :, :, 0].contiguous(),
        base.unflatten(2, (5, 2)),
        base[1:3],
        base[:, ::2],
        base[:, 3:9],
        base[:3].transpose(0, 1),
        base.transpose(2, 3),
        base.permute(0, 3, 1, 2)[:, 1:7],  # pixels that are no neighbours
        base.permute(0, 3, 1, 2)[:, 1:7, :, :5],  # and have no common stride
        base.flatten(1)[:, 1:67],  # rows with gaps
        base[:, :6, :1].expand(4, 6, 10, 9),
    ):
        weight, bias = drawn(device, x.shape[1:2], x.shape[1:2])
        got = opforge.group_norm(x, 3, weight, bias, activation=activation)
        assert got.stride() == torch.empty_like(x).stride()
        agree(got, theirs(x, 3, weight, bias, activation), [base, weight, bias])


@each_device
@each_layout
def test_a_gradient_lies_as_it_likes(device, layout):
    x = images(device, layout, 2, 6, 4, 5)
    y = opforge.group_norm(x, 2, activation="silu")
    grad = torch.linspace(-1, 2, y.numel(), device=device).reshape(y.shape)
    right = torch.autograd.grad(theirs(x, 2, activation="silu"), x, grad.double())[0]
    for other in LAYOUTS:
        given = grad.contiguous(memory_format=other)
        found = torch.autograd.grad(y, x, given, retain_graph=True)[0]
        torch.testing.assert_close(found, right, atol=2e-5, rtol=1e-4)
        assert found.is_contiguous(memory_format=layout)
    of_sum = torch.autograd.grad(y.sum(), x)[0]  # a gradient without strides
    right = torch.autograd.grad(theirs(x, 2, activation="silu").sum(), x)[0]
    torch.testing.assert_close(of_sum, right, atol=2e-5, rtol=1e-4)


@each_device
@each_layout
def test_a_parameter_has_a_dtype_of_its_own_or_is_missing(device, layout):
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        for other in (torch.float32, torch.bfloat16, torch.float64):
            x = images(device, layout, 2, 12, 4, 5, dtype=dtype)
            weight, bias = drawn(device, (12,), (12,), dtype=other)
            for params in ((weight, bias), (weight, None), (None, bias), (None, None)):
                inputs = [x, *(p for p in params if p is not None)]
                y = opforge.group_norm(x, 3, *params, activation="silu")
                exact = theirs(x, 3, *params, "silu")
                assert y.dtype == dtype
                torch.testing.assert_close(y, exact.to(dtype))
                found = gradients(y, inputs)
                assert [g.dtype for g in found] == [dtype, *[other] * (len(inputs) - 1)]
                coarse = max(torch.finfo(dtype).eps, torch.finfo(other).eps, 1e-6)
                right = gradients(exact, inputs)
                torch.testing.assert_close(found, right, atol=40 * coarse, rtol=8 * coarse)


@each_device
@each_layout
def test_statistics_that_are_not_saved_are_computed_again(device, layout):
    x = images(device, layout, 2, 12, 5, 30)
    weight, bias = drawn(device, (12,), (12,))
    saving, not_saving = (
        opforge.group_norm(x, 4, weight, bias, activation="silu", save=save)
        for save in (True, False)
    )
    assert torch.equal(not_saving, saving)
    inputs = [x, weight, bias]
    torch.testing.assert_close(gradients(not_saving, inputs), gradients(saving, inputs))


def test_saving_keeps_two_numbers_per_group():
    x, weight, bias = drawn("cpu", (2, 12, 5, 3), (12,), (12,))

    def kept(**given):
        shapes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: shapes.append(tuple(t.shape)) or t, lambda t: t
        ):
            opforge.group_norm(x, 4, weight, bias, **given)
        return shapes.count((2, 12, 5, 3)), shapes.count((2, 4))

    assert kept() == (1, 2)
    assert kept(activation="silu") == (1, 2)
    assert kept(save=False) == (1, 0)


@each_device
@each_layout
def test_numbers_far_from_zero(device, layout):
    """Only the mean's own rounding is left of the offset: half a unit of its last place."""
    x = images(device, layout, 3, 12, 20, 20)
    x = (x.detach() + 1e4).requires_grad_()
    exact = theirs(x, 4)
    error = (opforge.group_norm(x, 4).double() - exact).abs().max()
    assert error < 1.05 * 2**-11
    assert torch.equal(opforge.group_norm(x, 4).argmax(), exact.argmax())


@each_device
@each_layout
def test_the_variance_beside_an_outlier_that_comes_first(device, layout):
    x = images(device, layout, 2, 6, 20, 20)
    with torch.no_grad():
        x[:, :, 0, 0] = 1e5
    torch.testing.assert_close(opforge.group_norm(x, 3), theirs(x, 3).float(), rtol=1e-4, atol=1e-6)


@each_device
@each_layout
def test_a_number_close_to_the_largest(device, layout):
    """Its square is infinite, and so are distances from it, added up; its group's mean is not."""
    for place in (0, 7):
        x = images(device, layout, 1, 4, 5, 6)
        with torch.no_grad():
            x[0, 0].view(-1)[place] = 3e38
        y = opforge.group_norm(x, 2)
        assert y.isfinite().all()
        torch.testing.assert_close(y[:, 2:], theirs(x, 2)[:, 2:].float())


@each_device
@each_layout
@each_activation
def test_a_group_of_equal_numbers_gives_the_bias(device, layout, activation):
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        for shape in ((2, 6, 3, 3), (2, 6, 17, 19)):
            x = torch.full(shape, 0.1, dtype=dtype, device=device)
            x = x.contiguous(memory_format=layout)
            weight, bias = drawn(device, (6,), (6,), dtype=dtype)
            right = bias if activation is None else functional.silu(bias)
            got = opforge.group_norm(x, 2, weight, bias, activation=activation)
            right = right.reshape(1, 6, 1, 1).expand(shape)
            if activation is None:
                assert torch.equal(got, right)
            torch.testing.assert_close(got, right)


@each_device
@each_activation
def test_a_group_of_one_element_has_no_gradient(device, activation):
    for shape in ((4, 6), (9, 1)):
        x, weight, bias = drawn(device, shape, shape[1:], shape[1:])
        y = opforge.group_norm(x, shape[1], weight, bias, activation=activation)
        of_x, of_weight, of_bias = gradients(y, [x, weight, bias])
        assert not of_x.any()
        assert not of_weight.any()
        assert of_bias.all()


@each_device
@each_layout
def test_nothing_in_nothing_out(device, layout):
    weight, bias = drawn(device, (6,), (6,))
    for shape in ((0, 6, 3, 4), (2, 6, 0, 4)):
        x = images(device, layout, *shape)
        y = opforge.group_norm(x, 2, weight, bias, activation="silu")
        assert y.shape == shape
        of_x, of_weight, of_bias = gradients(y, [x, weight, bias])
        assert of_x.shape == shape
        assert not of_weight.any()
        assert not of_bias.any()


# On a GPU: planes that end within vectors, in groups that do not; planes of several pieces; of no
# equal ones, so that a cluster takes each, by vectors and one by one; a group that no cluster
# holds; channels that no block holds; chunks of pixels; many samples of few.
SHARED = [
    (torch.contiguous_format, (3, 16, 3, 6), 4),
    (torch.contiguous_format, (1, 2, 128, 160), 1),
    (torch.contiguous_format, (1, 2, 131, 157), 2),
    (torch.contiguous_format, (1, 8, 131, 157), 8),
    (torch.contiguous_format, (1, 3, 300, 300), 1),
    (torch.contiguous_format, (1, 8, 303, 301), 2),
    (torch.channels_last, (1, 2056, 3, 3), 257),
    (torch.channels_last, (1, 2057, 3, 3), 11),
    (torch.channels_last, (2, 16, 64, 64), 4),
    (torch.channels_last, (37, 32, 3, 3), 8),
]


@pytest.mark.sim
@pytest.mark.parametrize(("layout", "shape", "groups"), SHARED, ids=str)
@each_mode
def test_images_that_several_blocks_share(layout, shape, groups, mode):
    x = images("cpu", layout, *shape, dtype=torch.bfloat16)
    weight, bias = drawn("cpu", shape[1:2], shape[1:2], dtype=torch.bfloat16)
    case = x, weight, bias, groups, 1e-5, True, True
    with sim.active(mode):
        cases.check_forward(record("group_norm"), case)
        cases.check_backward(record("group_norm"), case)


@each_layout
def test_the_bits_do_not_depend_on_the_number_of_threads(layout):
    x = images("cpu", layout, 3, 96, 30, 31)
    weight, bias = drawn("cpu", (96,), (96,))
    threads, results = torch.get_num_threads(), []
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            y = opforge.group_norm(x, 8, weight, bias, activation="silu")
            results.append([y, *gradients(y, [x, weight, bias])])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@each_layout
def test_groups_too_long_to_keep_what_the_silu_passes(layout):
    x = images("cpu", layout, 1, 2, 800, 700)
    weight, bias = drawn("cpu", (2,), (2,))
    got = opforge.group_norm(x, 1, weight, bias, activation="silu")
    found = torch.autograd.grad(got.square().mean(), [x, weight, bias])
    right = theirs(x, 1, weight, bias, "silu").square().mean()
    expected = torch.autograd.grad(right, [x, weight, bias])
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"weight": torch.ones(3)}, r"weight must have shape \(6,\), one value per channel of x"),
        ({"bias": torch.ones(6, 1)}, r"bias must have shape \(6,\).*got \(6, 1\)"),
        ({"groups": 4}, r"groups must divide the channels, 6 for x of shape \(2, 6, 4\); got 4"),
        ({"groups": 0}, "groups must divide the channels.* got 0"),
        ({"eps": 0.0}, "eps must be positive and finite, got 0.0"),
        ({"eps": -1e-5}, "eps must be positive and finite, got -1e-05"),
        ({"eps": float("nan")}, "eps must be positive and finite, got nan"),
        ({"x": torch.ones(6)}, r"x must have at least two dims.*got shape \(6,\)"),
        ({"activation": "relu"}, "activation must be \"silu\" or None, got 'relu'"),
    ],
)
@each_device
def test_errors(device, given, said):
    given = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    with pytest.raises(ValueError, match=said):
        opforge.group_norm(**{"x": torch.ones(2, 6, 4, device=device), "groups": 2} | given)


@pytest.mark.parametrize("args", [(4, 12), (3, 12, 1e-3), (2, 12, 1e-5, False)])
@each_device
def test_the_module_takes_the_place_of_torchs(device, args):
    given, made, back = (
        module.GroupNorm(*args, device=device) for module in (torch.nn, opforge.nn, torch.nn)
    )
    for parameter in given.parameters():
        torch.nn.init.normal_(parameter)
    assert repr(made) == repr(given)
    made.load_state_dict(given.state_dict())
    back.load_state_dict(made.state_dict())
    pairs = zip(back.parameters(), given.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    (x,) = drawn(device, (2, 12, 5, 5))
    torch.testing.assert_close(made(x), given(x))
    found = gradients(made(x), [x, *made.parameters()])
    expected = gradients(given(x), [x, *given.parameters()])
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


@each_device
def test_what_is_special_about_the_module(device):
    (x,) = drawn(device, (2, 12, 5, 5))
    module = opforge.nn.GroupNorm(4, 12, device=device, bias=False, activation="silu")
    assert module.bias is None
    assert list(module.state_dict()) == ["weight"]
    assert repr(module).endswith("activation='silu')")
    torch.testing.assert_close(module(x), theirs(x, 4, module.weight, None, "silu").float())
    with pytest.raises(ValueError, match=r"weight must have shape \(8,\)"):
        module(x[:, :8])


def test_the_module_without_a_bias_and_with_another_activation():
    made = opforge.nn.GroupNorm(2, 6, bias=False)
    torch.nn.init.normal_(made.weight)
    made.reset_parameters()
    assert made.bias is None
    assert torch.equal(made.weight, torch.ones(6))
    with pytest.raises(ValueError, match="activation must be \"silu\" or None, got 'relu'"):
        opforge.nn.GroupNorm(2, 6, activation="relu")


def test_statistics_of_the_shape_of_x_do_not_take_its_strides():
    x = torch.randn(6, 4).t().requires_grad_()
    fake = torch.ops.opforge.group_norm(x.to("meta"), None, None, 6, 1e-5, False, True)
    real = torch.ops.opforge.group_norm(x, None, None, 6, 1e-5, False, True)
    assert [t.stride() for t in fake] == [t.stride() for t in real] == [(1, 4), (6, 1), (6, 1)]


@pytest.mark.parametrize("pixels", [(64, 130), (63, 133)], ids=["whole vectors", "odd"])
def test_what_no_cache_keeps(pixels):
    """On the CPU, planes of results of 8 MB and more are written past the caches."""
    (x,) = drawn("cpu", (8, 32, *pixels))
    parameters = drawn("cpu", (32,), (32,))
    got = opforge.group_norm(x, 8, *parameters, activation="silu")
    agree(got, theirs(x, 8, *parameters, activation="silu"), [x, *parameters])
