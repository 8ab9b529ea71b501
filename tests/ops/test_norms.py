# SPDX-License-Identifier: Apache-2.0
"""layer_norm and rms_norm through their public functions and modules."""

from __future__ import annotations

import pytest
import torch
from op_cases import each_device, each_mode, record
from torch.nn import functional

import opforge
from opforge import sim
from opforge.op import Make
from opforge.ops.families import norms
from opforge.truth import cases

TWO = ["layer_norm", "rms_norm"]
each_norm = pytest.mark.parametrize("name", TWO)


def theirs(name, x, weight=None, bias=None, eps=1e-5):
    shape = x.shape[-1:]
    if name == "layer_norm":
        return functional.layer_norm(x, shape, weight, bias, eps)
    return functional.rms_norm(x, shape, weight, eps)


def drawn(device, *shapes, dtype=torch.float32):
    """Leaves with random values, the same ones every time."""
    generator = torch.Generator().manual_seed(3)
    made = [torch.randn(s, generator=generator).to(device, dtype) for s in shapes]
    return [m.requires_grad_() for m in made]


def parameters_of(name, device, cols, dtype=torch.float32):
    return drawn(device, *[(cols,)] * (2 if name == "layer_norm" else 1), dtype=dtype)


def gradients(result, inputs):
    """Of a sum in which every element has its own factor."""
    outputs = result if isinstance(result, tuple) else (result,)
    factors = [torch.linspace(-1, 2, o.numel()).reshape(o.shape).to(o) for o in outputs]
    return torch.autograd.grad(outputs, inputs, factors, retain_graph=True)


def agree(got, right, inputs):
    """Values and gradients."""
    torch.testing.assert_close(got, right)
    found, expected = gradients(got, inputs), gradients(right, inputs)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@each_norm
@each_device
def test_norms_are_those_of_torch(device, name):
    for shape in [(4, 40), (3,), (2, 3, 130)]:
        (x,), parameters = drawn(device, shape), parameters_of(name, device, shape[-1])
        got = getattr(opforge, name)(x, *parameters, eps=1e-5)
        right = theirs(name, x, *parameters)
        inputs = [x, *parameters]
        agree(got, right, inputs)


@each_norm
@each_device
def test_a_residual_is_added_and_the_sum_returned(device, name):
    x, residual = drawn(device, (6, 40), (6, 40))
    (weight, *_) = parameters_of(name, device, 40)
    y, h = getattr(opforge, name)(x, weight, residual=residual, eps=1e-5)
    right = theirs(name, x + residual, weight), x + residual
    inputs = [x, residual, weight]
    agree((y, h), right, inputs)
    y, _ = getattr(opforge, name)(x, weight, residual=residual, eps=1e-5)
    agree(y, right[0], inputs)  # nobody used the sum


@each_norm
@each_device
def test_relu_before_and_after(device, name):
    norm = getattr(opforge, name)
    x, residual = drawn(device, (6, 40), (6, 40))
    parameters = parameters_of(name, device, 40)
    inputs = [x, *parameters]
    for got, right in [
        (
            norm(x, *parameters, eps=1e-5, relu="before"),
            theirs(name, torch.relu(x), *parameters),
        ),
        (
            norm(x, *parameters, eps=1e-5, relu="after"),
            torch.relu(theirs(name, x, *parameters)),
        ),
    ]:
        agree(got, right, inputs)
    got = norm(x, *parameters, residual=residual, eps=1e-5, relu="before")
    h = torch.relu(x) + residual
    right, inputs = (theirs(name, h, *parameters), h), [x, residual, *parameters]
    agree(got, right, inputs)


@each_norm
@each_device
def test_dropout_after(device, name):
    x, weight = drawn(device, (16, 40), (40,))
    norm = getattr(opforge, name)
    torch.manual_seed(5)
    y = norm(x, weight, eps=1e-5, dropout="after", p=0.25)
    kept = y != 0
    assert 0.15 < 1 - kept.double().mean() < 0.35
    right = torch.where(kept, theirs(name, x, weight) / 0.75, 0)
    inputs = [x, weight]
    agree(y, right, inputs)
    assert not torch.equal(norm(x, weight, eps=1e-5, dropout="after", p=0.25), y)
    torch.manual_seed(5)
    assert torch.equal(norm(x, weight, eps=1e-5, dropout="after", p=0.25), y)


@each_norm
@each_device
def test_dropout_before(device, name):
    x, residual, weight = drawn(device, (16, 40), (16, 40), (40,))
    norm = getattr(opforge, name)
    torch.manual_seed(5)
    y, h = norm(x, weight, residual=residual, eps=1e-5, dropout="before", p=0.25)
    kept = (h - residual).abs() > 1e-6
    assert 0.15 < 1 - kept.double().mean() < 0.35
    sum_ = torch.where(kept, x / 0.75, 0) + residual
    right, inputs = (theirs(name, sum_, weight), sum_), [x, residual, weight]
    agree((y, h), right, inputs)
    # Without a residual the backward makes the sum again: the same elements are dropped.
    torch.manual_seed(5)
    y = norm(x, weight, eps=1e-5, dropout="before", p=0.25)
    right = theirs(name, torch.where(kept, x / 0.75, 0), weight)
    inputs = [x, weight]
    agree(y, right, inputs)


@each_norm
@pytest.mark.parametrize("relu", [None, "before"])
@pytest.mark.parametrize("cols", [4096, 4093])
def test_what_no_cache_keeps(name, relu, cols):
    """On the CPU, results of 8 MB and more are written past the caches."""
    (x,), parameters = drawn("cpu", (530, cols)), parameters_of(name, "cpu", cols)
    got = getattr(opforge, name)(x, *parameters, eps=1e-5, relu=relu)
    right = theirs(name, x.relu() if relu else x, *parameters)
    torch.testing.assert_close(got, right)
    weights = torch.rand(got.shape, generator=torch.Generator().manual_seed(1))
    found, expected = (
        torch.autograd.grad((y * weights).sum(), [x, *parameters]) for y in (got, right)
    )
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@each_norm
@each_device
def test_what_is_kept_is_scaled_by_p_rounded(device, name):
    x, weight = drawn(device, (16, 4000), (4000,))
    norm, factor = getattr(opforge, name), 65536 / 66  # where 1 / (1 - p) is 1000
    torch.manual_seed(5)
    y = norm(x, weight, eps=1e-5, dropout="after", p=0.999)
    kept = y != 0
    assert 20 < kept.sum() < 120
    torch.testing.assert_close(y[kept] / factor, theirs(name, x, weight)[kept])
    _, h = norm(x, weight, residual=torch.zeros_like(x), eps=1e-5, dropout="before", p=0.999)
    kept = h != 0
    assert 20 < kept.sum() < 120
    torch.testing.assert_close(h[kept], factor * x[kept])


@each_norm
@each_device
def test_nothing_and_everything_dropped(device, name):
    norm = getattr(opforge, name)
    x, residual, weight = drawn(device, (5, 33), (5, 33), (33,))
    for where in ("before", "after"):
        assert torch.equal(norm(x, weight, dropout=where, p=0.0), norm(x, weight))
    y = norm(x, weight, dropout="after", p=1.0)
    assert not y.any()
    assert not any(g.any() for g in gradients(y, [x, weight]))
    y, h = norm(x, weight, residual=residual, dropout="before", p=1.0)
    assert torch.equal(h, residual)
    assert torch.equal(y, norm(residual, weight))
    of_x, of_residual = gradients(y, [x, residual])
    assert not of_x.any()
    assert of_residual.any()


@each_norm
@each_device
def test_a_weight_has_a_dtype_of_its_own(device, name):
    norm = getattr(opforge, name)
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        for other in (torch.float32, torch.bfloat16, torch.float64):
            (x,) = drawn(device, (6, 40), dtype=dtype)
            parameters = parameters_of(name, device, 40, other)
            y = norm(x, *parameters, eps=1e-5)
            exact = theirs(name, x.double(), *[p.double() for p in parameters])
            assert y.dtype == dtype
            torch.testing.assert_close(y, exact.to(dtype))
            found = gradients(y, [x, *parameters])
            assert [g.dtype for g in found] == [dtype, *[other] * len(parameters)]
            right = gradients(exact, [x, *parameters])
            coarse = max(torch.finfo(dtype).eps, torch.finfo(other).eps, 1e-6)
            torch.testing.assert_close(found, right, atol=40 * coarse, rtol=8 * coarse)


@each_norm
@each_device
def test_parameters_lie_anywhere_beside_any_rows(device, name):
    def placed(dtype, cols, skipped):
        (flat,) = drawn(device, (skipped + cols,), dtype=dtype)
        return flat.detach()[skipped:]

    short, wide = torch.bfloat16, torch.float32
    kinds = [((short, 0), (short, 0)), ((wide, 0), (wide, 0)), ((short, 3), (short, 0))]
    kinds += [((wide, 0), (short, 0)), ((wide, 1), (wide, 2)), (None, (short, 0)), (None, None)]
    for cols in (40, 43, 1285):
        x, residual = (t.detach() for t in drawn(device, (3, cols), (3, cols), dtype=short))
        for kind in kinds:
            both = [None if k is None else placed(k[0], cols, k[1]) for k in kind]
            given = both if name == "layer_norm" else both[:1]
            for extra in ({}, {"relu": "after"}, {"residual": residual}):
                y = getattr(opforge, name)(x, *given, eps=1e-5, **extra)
                y = y[0] if "residual" in extra else y
                h = x + residual if "residual" in extra else x
                exact = theirs(name, h.double(), *[p if p is None else p.double() for p in given])
                exact = exact.relu() if "relu" in extra else exact
                torch.testing.assert_close(y, exact.to(short), msg=f"{cols} {kind} {list(extra)}")


@each_norm
@each_device
def test_statistics_that_are_not_saved_are_computed_again(device, name):
    x, residual, weight = drawn(device, (6, 40), (6, 40), (40,))
    norm = getattr(opforge, name)
    for given in ({}, {"residual": residual}, {"relu": "before"}):
        inputs = [x, weight, *([residual] if "residual" in given else [])]
        saving, not_saving = (norm(x, weight, **given, save=save) for save in (True, False))
        torch.testing.assert_close(not_saving, saving, rtol=0, atol=0)
        torch.testing.assert_close(gradients(not_saving, inputs), gradients(saving, inputs))


@each_norm
def test_saving_keeps_a_number_per_row_and_nothing_twice(name):
    """With a residual the sum alone; the input then is wanted for a relu's mask only."""
    x, residual, weight = drawn("cpu", (6, 40), (6, 40), (40,))
    statistics = 2 if name == "layer_norm" else 1

    def large(**given):
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: kept.append(t.shape) or t, lambda t: t
        ):
            getattr(opforge, name)(x, weight, **given)
        return kept.count((6, 40)), kept.count((6,))

    assert large() == (1, statistics)
    assert large(save=False) == (1, 0)
    assert large(residual=residual) == (1, statistics)
    assert large(residual=residual, relu="before") == (2, statistics)


@each_device
def test_an_offset_is_added_to_the_weight(device):
    x, weight = drawn(device, (6, 40), (40,))
    y = opforge.rms_norm(x, weight, offset=1.0, eps=1e-5)
    right = theirs("rms_norm", x, weight + 1)
    inputs = [x, weight]
    agree(y, right, inputs)


@each_device
def test_the_variance_of_numbers_far_from_zero(device):
    """The difference of two large means would leave nothing of it."""
    (x,) = drawn(device, (5, 300))
    x = (x.detach() + 3000).requires_grad_()
    exact = theirs("layer_norm", x.double()).float()
    torch.testing.assert_close(opforge.layer_norm(x), exact, atol=1e-3, rtol=1e-3)


@each_device
def test_an_outlier_that_comes_first_and_is_dropped(device):
    """A row is added up around its first element, as it is behind the dropout."""
    for dtype in (torch.float32, torch.bfloat16):
        (x,) = drawn(device, (64, 1000), dtype=dtype)
        x = x.detach()
        x[:, 0] = 1e6
        nothing = torch.zeros_like(x)
        y, h = opforge.layer_norm(x, residual=nothing, dropout="before", p=0.5)
        assert 10 < (h[:, 0] == 0).sum() < 54
        torch.testing.assert_close(y, theirs("layer_norm", h.double()).to(dtype))


@each_device
def test_squares_around_an_outlier_that_overflow(device):
    """Those around the mean do not."""
    (x,) = drawn(device, (4, 1000), dtype=torch.bfloat16)
    x = x.detach()
    x[:, 0] = 1e18
    torch.testing.assert_close(opforge.layer_norm(x), theirs("layer_norm", x.double()).bfloat16())


@each_device
@pytest.mark.parametrize("cols", [24, 520, 4100])
def test_the_variance_beside_an_outlier_that_comes_first(device, cols):
    """It is what rows of 16 bits are added up around; other rows must not notice."""
    (x,) = drawn(device, (9, cols), dtype=torch.float16)
    given = x.detach(), *[None] * 4, 1e-5, 0, 0, 0.0, True
    record("layer_norm")
    alone = torch.ops.opforge.layer_norm(*given)  # with what it saves
    given[0][::2, 0] = 6e4
    found = torch.ops.opforge.layer_norm(*given)
    exact = given[0].double()
    deviation = (exact.var(-1, correction=0) + 1e-5).sqrt()
    assert ((found[2] - exact.mean(-1)).abs() < 1e-5 * deviation).all()
    torch.testing.assert_close(found[3], (1 / deviation).float(), rtol=1e-5, atol=0)
    assert all(torch.equal(found[i][1::2], alone[i][1::2]) for i in (0, 2, 3))


@each_device
def test_a_row_of_one_value_has_no_deviation(device):
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for cols in (40, 43, 1285):
            weight, bias = parameters_of("layer_norm", device, cols, dtype)
            for value in (0.1, -1234.567):
                x = torch.full((3, cols), value, dtype=dtype, device=device)
                assert torch.equal(opforge.layer_norm(x, weight, bias), bias.expand(3, cols))


@each_norm
@each_device
def test_any_strides_and_sizes(device, name):
    norm = getattr(opforge, name)
    (base,) = drawn(device, (4, 5, 6, 48))
    for x in (
        base.permute(2, 0, 1, 3),  # rows without a common stride
        base[..., 1:34],
        base[:, :, :, ::2],
        base.transpose(1, 3),
        base[:, :1, :, :1].expand(4, 5, 6, 1),
        base[:, :0],
        base[..., :0],
    ):
        (weight,) = drawn(device, x.shape[-1:])
        got = norm(x, weight, eps=1e-5)
        agree(got, norm(x.contiguous(), weight, eps=1e-5), [base, weight])


# On a GPU of one multiprocessor: several tiles to a block, rows that begin at changing alignments,
# clusters, and sources that take more shared memory than two stages of whole tiles have.
MANY = [
    ((40, 31), torch.bfloat16),
    ((600, 31), torch.bfloat16),
    ((300, 96), torch.bfloat16),
    ((50, 1001), torch.bfloat16),
    ((40, 5000), torch.bfloat16),
    ((5, 9001), torch.bfloat16),
    ((3, 20_000), torch.bfloat16),
    ((3, 9000), torch.float32),
    ((40, 512), torch.float32),
]


@pytest.mark.sim
@each_norm
@pytest.mark.parametrize(("shape", "dtype"), MANY, ids=str)
@pytest.mark.parametrize("residual", [False, True])
@each_mode
def test_blocks_take_several_rows(name, shape, dtype, residual, mode):
    make = Make(dtype)
    sizes = (shape, shape, shape[-1:], shape[-1:])
    x, added, weight, bias = (make(*size).requires_grad_() for size in sizes)
    added = added if residual else None
    relu = int(norms.Stage.RELU) if residual else 0  # so that x is wanted beside the sum
    if name == "layer_norm":
        case = (x, weight, bias, added, None, 1e-5, relu, 0, 0.0, True)
    else:
        case = (x, weight, added, None, 1e-5, 0.0, relu, 0, 0.0, True)

    def around():
        return sim.active(mode, device=sim.Device(multiprocessors=1))

    cases.check_forward(record(name), case, around)
    cases.check_backward(record(name), case, around=around)


@each_device
@pytest.mark.parametrize("cols", [1, 8, 1024])
def test_what_no_element_has_a_part_in_has_no_gradient(device, cols):
    """A row of one value, all of whose gradients are the same: nothing is left by rounding."""
    x = torch.full((5, cols), 0.7, device=device, requires_grad=True)
    weight = torch.full((cols,), 19 / 64, device=device)  # few digits: their sums are exact
    (of_x,) = torch.autograd.grad(opforge.layer_norm(x, weight).sum(), x)
    assert not of_x.any()


@each_norm
def test_the_bits_do_not_depend_on_the_number_of_threads(name):
    x, weight = drawn("cpu", (700, 300), (300,))
    threads, results = torch.get_num_threads(), []
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            y = getattr(opforge, name)(x, weight)
            results.append([y, *gradients(y, [x, weight])])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@each_norm
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"weight": torch.ones(2)}, r"weight must have shape \(3,\), one value per column of x"),
        ({"residual": torch.ones(3, 2)}, r"residual must have the shape of x, \(2, 3\)"),
        ({"eps": 0.0}, "eps must be positive and finite, got 0.0"),
        ({"eps": -1e-5}, "eps must be positive and finite, got -1e-05"),
        ({"eps": float("nan")}, "eps must be positive and finite, got nan"),
        ({"dropout": "after", "p": 1.5}, "probability,? from 0 to 1.* got 1.5"),
        ({"dropout": "before", "p": -0.1}, "probability,? from 0 to 1.* got -0.1"),
        ({"relu": "sideways"}, 'relu must be "before", "after" or None, got \'sideways\''),
        ({"dropout": True}, 'dropout must be "before", "after" or None, got True'),
    ],
)
@each_device
def test_errors(device, name, given, said):
    given = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    with pytest.raises(ValueError, match=said):
        getattr(opforge, name)(torch.ones(2, 3, device=device), **given)


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize(
    ("args", "shape"),
    [((40,), (3, 40)), (((4, 10), 1e-3), (2, 3, 4, 10)), ((40, 1e-5, False), (3, 40))],
)
@each_device
def test_modules_take_the_place_of_torchs(device, kind, args, shape):
    given, made, back = (
        getattr(m, kind)(*args, device=device) for m in (torch.nn, opforge.nn, torch.nn)
    )
    for parameter in given.parameters():
        torch.nn.init.normal_(parameter)
    assert repr(made) == repr(given)
    made.load_state_dict(given.state_dict())
    back.load_state_dict(made.state_dict())
    pairs = zip(back.parameters(), given.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    x, residual = drawn(device, shape, shape)
    torch.testing.assert_close(made(x), given(x))
    right = given(x + residual), x + residual
    torch.testing.assert_close(made(x, residual), right)
    found = gradients(made(x, residual), [x, residual, *made.parameters()])
    expected = gradients(right, [x, residual, *given.parameters()])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@each_device
def test_what_is_special_about_the_modules(device):
    (x,) = drawn(device, (3, 40))
    assert opforge.nn.LayerNorm(40, bias=False, device=device).bias is None
    for dtype in (torch.float32, torch.bfloat16, torch.float64):  # eps=None is torch's choice
        small = (x.detach() * 1e-4).to(dtype)
        norms = [n.RMSNorm(40, device=device, dtype=dtype) for n in (opforge.nn, torch.nn)]
        torch.testing.assert_close(norms[0](small), norms[1](small))
    gemma = opforge.nn.RMSNorm(40, eps=1e-6, device=device, offset=1.0)
    assert not gemma.weight.any()
    torch.testing.assert_close(gemma(x), theirs("rms_norm", x, eps=1e-6))
    assert repr(gemma) == "RMSNorm((40,), eps=1e-06, elementwise_affine=True, offset=1)"
    for module in (opforge.nn.LayerNorm((4, 10)), opforge.nn.RMSNorm((4, 10))):
        with pytest.raises(ValueError, match=r"x must end in the dims .* \(4, 10\); its shape is"):
            module(torch.ones(10, 4))
        with pytest.raises(ValueError, match="residual must end in the dims"):
            module(torch.ones(4, 10), torch.ones(10, 4))


@each_device
def test_the_mean_beside_a_number_close_to_the_largest(device):
    """Distances from it would add up to infinity, and mean and result be NaN."""
    for place in (0, 7):
        (x,) = drawn(device, (3, 40))
        with torch.no_grad():
            x[1, place] = 3e38
        y = opforge.layer_norm(x)
        assert y.isfinite().all()
        assert (y[1].abs() < 1e-6).all()
