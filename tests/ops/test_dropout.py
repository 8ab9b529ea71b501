# SPDX-License-Identifier: Apache-2.0
"""dropout: which elements are dropped, on what that depends, and how torch's seeds govern it."""

from __future__ import annotations

import math

import pytest
import torch
from op_cases import DTYPES, each_device, each_dtype, record
from torch.utils.checkpoint import checkpoint

import opforge
from opforge import sim
from opforge.ops.families import philox


def drop(x: torch.Tensor, seed: int, p: float) -> torch.Tensor:
    return record("dropout")(x, torch.tensor([seed], device=x.device), p)


def mask(count: int, seed: int, p: float, device: str) -> torch.Tensor:
    return drop(torch.ones(count, device=device), seed, p) != 0


def test_the_reference_gives_the_published_words():
    ones = torch.tensor([-1])
    assert philox.words(ones * 0, 4).tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox.halves(ones * 0, 3).tolist() == [0xE8D5, 0x6627, 0xC58D]
    # test_rng.py compares the kernels with the published words for every counter.
    for p, threshold in ((0.5, 1 << 15), (0.1, 6554)):
        kept = philox.halves(ones, 4001) >= threshold
        assert torch.equal(mask(4001, -1, p, "cpu"), kept)


@each_device
@each_dtype
def test_the_backward_drops_what_the_forward_dropped(dtype, device):
    x = torch.ones(63, 257, dtype=dtype, device=device, requires_grad=True)
    y = opforge.dropout(x, 0.4)
    y.sum().backward()
    assert 0.5 < (y != 0).double().mean() < 0.7
    assert torch.equal(x.grad, y.detach())


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_elements_are_dropped_independently_at_the_rate_asked_for(p):
    n = 1 << 20
    kept = mask(n, 1234, p, "cpu").double()
    sigma = math.sqrt(p * (1 - p) / n)
    assert abs(kept.mean() - (1 - p)) < 4 * sigma
    for lag in (1, 2, 3, 4, 5, 7, 8, 9, 16, 32, 128, 1024):
        # Of independent elements, the mean product of deviations is 0 within p (1 - p) / sqrt(n).
        products = (kept[lag:] - (1 - p)) * (kept[:-lag] - (1 - p))
        assert abs(products.mean()) < 4 * p * (1 - p) / math.sqrt(n), lag


@pytest.mark.parametrize(
    ("p", "rounded"),
    [
        (2**-16, 2**-16),
        (0.7 * 2**-16, 2**-16),
        (0.1, 6554 / 65536),
        (1 - 2**-16, 1 - 2**-16),
        (1 - 2**-18, 1 - 2**-16),
    ],
)
def test_rate_and_mean_are_those_of_p_rounded(p, rounded):
    n = 1 << 22
    y = drop(torch.ones(n, dtype=torch.float64), 4321, p)
    assert torch.equal(y != 0, philox.kept(torch.tensor([4321]), y.shape, p))
    assert abs((y != 0).double().mean() - (1 - rounded)) < 4 * math.sqrt(
        rounded * (1 - rounded) / n
    )
    assert abs(y.mean() - 1) < 4 * math.sqrt(rounded / (1 - rounded) / n)


@each_device
@each_dtype
def test_what_is_kept_is_scaled_by_p_rounded(dtype, device):
    x = torch.ones(20_000, dtype=dtype, device=device)
    # 65536 * p is 6553.6, and 65470.46, which makes 1 - p 0.7% larger
    for p, dropped in ((0.0, 0), (2**-18, 0), (0.1, 6554), (0.999, 65470), (1.0, 65536)):
        y = drop(x, 9, p)
        found = y[y != 0].unique().tolist()
        right = [torch.tensor(65536 / (65536 - dropped), dtype=dtype).item()] if p < 1 else []
        assert found == right, p
        assert torch.equal(y, record("dropout").reference(x, torch.tensor([9], device=device), p))


def test_the_words_are_uniform():
    """Chi-square of each byte over 256 bins: 255 degrees of freedom, 4 sigma are 90."""
    drawn = philox.words(torch.tensor([99]), 1 << 18)
    for shift in (0, 8, 16, 24):
        counts = torch.bincount(drawn >> shift & 255, minlength=256).double()
        expected = drawn.numel() / 256
        assert abs(((counts - expected) ** 2 / expected).sum() - 255) < 90


def test_another_seed_is_another_mask():
    """Two masks agree where chance has it: of single bits apart in the seed, too."""
    n, base = 1 << 18, mask(1 << 18, 5, 0.5, "cpu")
    for seed in (5 ^ 1, 5 ^ 1 << 31, 5 ^ 1 << 32, 5 ^ 1 << 62, -5):
        agree = (mask(n, seed, 0.5, "cpu") == base).double().mean()
        assert abs(agree - 0.5) < 4 * 0.5 / math.sqrt(n)


@each_device
def test_the_mask_depends_on_seed_and_index_alone(device):
    kept = philox.kept(torch.tensor([7]), torch.Size((24, 40)), 0.3).to(device)
    whole = torch.ones(24, 82, device=device)
    layouts = [
        torch.ones(24, 40, device=device),
        torch.ones(40, 24, device=device).t(),
        whole[:, 1:41],
        whole[:, ::2][:, :40],
        torch.ones(1, 1, device=device).expand(24, 40),
    ]
    for x in layouts:
        assert torch.equal(drop(x, 7, 0.3) != 0, kept)
    for dtype in DTYPES:
        assert torch.equal(drop(layouts[0].to(dtype), 7, 0.3) != 0, kept)
    assert torch.equal(drop(layouts[0].view(2, 3, 4, 40), 7, 0.3).view(24, 40) != 0, kept)


@pytest.mark.sim
@pytest.mark.parametrize("options", [{"vec": 1}, {"block": 64}])
def test_the_mask_does_not_depend_on_the_launch(options):
    x = torch.ones(2, 1001)
    with sim.active():
        right = drop(x, 7, 0.3)
        with opforge.launch_config("dropout", **options):
            assert torch.equal(drop(x, 7, 0.3), right)


@pytest.mark.sim
@each_dtype
def test_the_cpu_gives_the_bits_of_the_gpu(dtype):
    x = torch.randn(37, 129, dtype=torch.float64).to(dtype)
    ours = drop(x, -3, 0.3)
    with sim.active():
        theirs = drop(x, -3, 0.3)
    assert torch.equal(ours, theirs)


@each_device
def test_what_is_dropped_is_zero_whatever_it_was(device):
    for value in (math.inf, -math.inf, math.nan, -1.0):
        x = torch.full((1000,), value, device=device)
        y = drop(x, 11, 0.5)
        dropped = ~mask(1000, 11, 0.5, device)
        assert torch.equal(y[dropped], torch.zeros_like(y[dropped]))
        assert not torch.signbit(y[dropped]).any()
        assert torch.equal(y[~dropped].nan_to_num(), (x[~dropped] * 2).nan_to_num())
        assert not drop(x, 11, 1.0).any()
        assert torch.equal(drop(x, 11, 0.0).nan_to_num(), x.nan_to_num())


@each_device
@each_dtype
def test_all_is_dropped_also_what_has_the_highest_number(dtype, device):
    x = torch.full((1426,), math.inf, dtype=dtype, device=device)
    assert (
        philox.halves(torch.tensor([2850057]), 1426)[1424:].tolist() == [65535] * 2
    )  # see test_rng
    assert drop(x, 2850057, 1 - 2**-16)[1424:].isinf().all()
    assert not drop(x, 2850057, 1.0).any()


@each_device
def test_torchs_seed_is_the_seed(device):
    x = torch.ones(4096, device=device)
    torch.manual_seed(3)
    first, second = opforge.dropout(x), opforge.dropout(x)
    torch.manual_seed(3)
    assert torch.equal(opforge.dropout(x), first)
    assert torch.equal(opforge.dropout(x), second)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_drops_the_same_again(use_reentrant):
    x = torch.ones(4096, requires_grad=True)

    def layer(x):
        return opforge.dropout(x * 1.0, 0.5) * 3.0

    y = checkpoint(layer, x, use_reentrant=use_reentrant)
    opforge.dropout(x)  # the generator moves on in between
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.nightly
def test_compiled_in_one_graph(backend):
    def layer(x):
        return opforge.dropout(torch.sin(x), 0.5)

    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    x = torch.full((64, 65), math.pi / 2, requires_grad=True)
    y = compiled(x)
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert 0.4 < (y != 0).double().mean() < 0.6
    assert torch.equal(gradient != 0, y != 0)
    assert not torch.equal(compiled(x), y)


def test_nothing_is_done_where_nothing_is_dropped():
    x = torch.randn(5)
    assert opforge.dropout(x, 0.7, training=False) is x
    assert opforge.dropout(x, 0) is x
    module = opforge.nn.Dropout(0.7)
    assert repr(module) == "Dropout(p=0.7)"
    assert module.eval()(x) is x
    assert module.train()(torch.ones(1000)).count_nonzero() < 400
    assert opforge.nn.Dropout(1)(x).tolist() == [0.0] * 5


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan, math.inf])
def test_p_must_be_a_probability(p):
    x, seed = torch.ones(5), torch.tensor([1])
    for call in (
        lambda: opforge.dropout(x, p),
        lambda: opforge.dropout(x, p, training=False),
        lambda: record("dropout")(x, seed, p),
        lambda: opforge.nn.Dropout(p),
    ):
        with pytest.raises(ValueError, match=r"p is a probability, from 0 to 1; got"):
            call()
