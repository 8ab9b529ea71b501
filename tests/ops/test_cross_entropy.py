# SPDX-License-Identifier: Apache-2.0
"""cross_entropy and its module against torch in float64."""

from __future__ import annotations

import math

import pytest
import torch
from op_cases import each_device, each_dtype, record
from torch.nn import functional

import opforge
from opforge import sim

each_reduction = pytest.mark.parametrize("reduction", ["none", "mean", "sum"])


def drawn(device, *shape, dtype=torch.float32, ignored=0.25, seed=3):
    """Logits that want a gradient and labels, some of them -100."""
    generator = torch.Generator().manual_seed(seed)
    logits = (2 * torch.randn(shape, generator=generator)).to(device, dtype)
    target = torch.randint(0, shape[-1], shape[:-1], generator=generator)
    target[torch.rand(target.shape, generator=generator) < ignored] = -100
    return logits.requires_grad_(), target.to(device)


def truth(logits, target, *, reduction="mean", z_loss=0.0, ignore_index=-100, label_smoothing=0.0):
    """torch's loss in float64, with the z-loss written out."""
    v = logits.double()
    losses = functional.cross_entropy(
        v.reshape(-1, v.shape[-1]),
        target.reshape(-1),
        reduction="none",
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    ).reshape(target.shape)
    kept = target != ignore_index
    losses = losses + kept * z_loss * v.logsumexp(-1).square()
    if reduction == "none":
        return losses
    return losses.sum() / kept.sum() if reduction == "mean" else losses.sum()


def agree(logits, target, scale=1.0, **options):
    """Loss and gradient, to a few roundings of the dtype they are in."""
    got, right = opforge.cross_entropy(logits, target, **options), truth(logits, target, **options)
    assert got.dtype == (torch.float64 if logits.dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(got.double(), right, atol=2e-6 * scale, rtol=2e-6)
    factors = torch.linspace(-1, 2, got.numel(), dtype=torch.float64).reshape(got.shape).to(right)
    (found,) = torch.autograd.grad(got, logits, factors.to(got.dtype))
    (expected,) = torch.autograd.grad(right, logits, factors)
    assert found.dtype == logits.dtype
    loose = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}.get(logits.dtype, 1e-5)
    torch.testing.assert_close(found, expected, atol=1e-6 * scale, rtol=loose)
    return found


@each_device
@each_dtype
@each_reduction
def test_it_is_that_of_torch(device, dtype, reduction):
    for shape in [(7, 33), (40,), (2, 3, 130), (12, 8), (2, 4, 2, 5)]:
        agree(*drawn(device, *shape, dtype=dtype, ignored=0), reduction=reduction)
    logits, target = drawn(device, 33, 72, dtype=dtype)
    found = agree(logits, target, reduction=reduction)
    assert (target == -100).any()
    assert not found[target == -100].any()


@each_device
@each_reduction
@pytest.mark.parametrize("options", [{"label_smoothing": 0.1}, {"z_loss": 1e-2}, {}])
def test_smoothing_and_z_loss(device, reduction, options):
    logits, target = drawn(device, 3, 7, 50)
    agree(logits, target, reduction=reduction, **options)
    agree(logits, target.masked_fill(target == -100, 4), ignore_index=4, **options)
    agree(*drawn(device, 4, 19, dtype=torch.float64), label_smoothing=1.0, z_loss=1.0)


@each_device
def test_a_vocabulary_of_odd_size(device):
    """Rows that begin anywhere; with few of them, a GPU spreads each over several blocks."""
    for dtype in (torch.float32, torch.bfloat16):
        agree(*drawn(device, 3, 50257, dtype=dtype, ignored=0), label_smoothing=0.1)


@pytest.mark.nightly
@pytest.mark.sim
@pytest.mark.parametrize(
    ("shape", "blocks", "threads"),
    [
        ((5, 16_389), 5, 256),
        ((9, 4099), 9, 128),
        ((17, 2500), 17, 64),
        ((64, 8200), 64, 64),
        ((70, 2048), 18, 128),  # a warp to a row
        ((130, 515), 17, 128),  # half of one
    ],
)
def test_many_rows_take_few_threads_each(shape, blocks, threads):
    """On a GPU of one multiprocessor these are many."""
    logits, target = drawn("cpu", *shape, dtype=torch.bfloat16)
    with sim.active("race", device=sim.Device(multiprocessors=1), traffic=True) as calls:
        got = opforge.cross_entropy(logits, target, label_smoothing=0.1, reduction="none")
    (launch,) = [one for call in calls for one in call.launches if "rows" in one.kernel]
    assert (launch.blocks, launch.threads) == (blocks, threads)
    right = truth(logits, target, label_smoothing=0.1, reduction="none")
    torch.testing.assert_close(got.double(), right, atol=2e-6, rtol=2e-6)


@pytest.mark.nightly
@pytest.mark.sim
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("bytes_", "rows", "blocks", "threads"),
    [
        (2048, 67, 9, 128),  # sixteen lanes to a row
        (8192, 70, 70, 64),
        (22_016, 6, 6, 192),  # the last threads have seven vectors
        (10_240, 17, 17, 64),  # 96 threads would have less: it is not loaded at once
        (131_072, 5, 5, 256),  # more than eight to each of 512: nor is this
    ],
)
def test_a_thread_loads_its_share_of_a_plain_row_at_once(dtype, bytes_, rows, blocks, threads):
    """Eight vectors, if rows are many: on a GPU of one multiprocessor, these are."""
    logits, target = drawn("cpu", rows, bytes_ // dtype.itemsize, dtype=dtype)
    target[0], target[1] = 5, -100
    with sim.active("race", device=sim.Device(multiprocessors=1), traffic=True) as calls:
        got = opforge.cross_entropy(logits, target, z_loss=1e-2, reduction="none")
        mean = opforge.cross_entropy(logits, target)
    launches = [one for call in calls for one in call.launches if "rows" in one.kernel]
    assert [(one.blocks, one.threads) for one in launches] == 2 * [(blocks, threads)]
    right = truth(logits, target, z_loss=1e-2, reduction="none")
    torch.testing.assert_close(got.double(), right, atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(mean.double(), truth(logits, target), atol=2e-6, rtol=2e-6)


@each_device
@pytest.mark.parametrize("rows", [5000, 20_000])
def test_many_rows_are_added_up_by_many_threads(device, rows):
    logits, target = drawn(device, rows, 3)
    agree(logits, target, scale=10, reduction="sum")
    assert torch.equal(*[opforge.cross_entropy(logits, target) for _ in range(2)])


@each_device
@pytest.mark.parametrize("cols", [600, 601])
@pytest.mark.parametrize("largest", [1e5, 1e7, 9e7, 2e8, 1e10, -1e10, 1e20, 1e37, 3e38])
def test_logits_of_any_size(device, largest, cols):
    """The sum is taken around the largest logit; at 16 bits by a product that is rounded."""
    logits, target = drawn(device, 4, cols, dtype=torch.bfloat16, ignored=0)
    logits = logits.detach()
    if largest < 0:
        logits += largest
    else:
        logits[:, 77] = largest
    target[:2] = 77
    agree(logits.requires_grad_(), target, reduction="none")


@each_device
def test_one_class(device):
    logits, target = drawn(device, 5, 1, ignored=0)
    assert not agree(logits, target, reduction="none").any()


@each_device
def test_of_no_rows_the_mean_is_nan(device):
    logits, target = drawn(device, 5, 9)
    ignored = torch.full_like(target, -100)
    loss = opforge.cross_entropy(logits, ignored)
    assert loss.isnan()
    loss.backward()
    assert not logits.grad.any()
    for reduction in ("none", "sum"):
        assert not opforge.cross_entropy(logits, ignored, reduction=reduction).any()
    assert opforge.cross_entropy(logits[:0], target[:0]).isnan()
    assert opforge.cross_entropy(logits[:0], target[:0], reduction="sum") == 0


@each_device
@pytest.mark.parametrize("cols", [40, 41])
def test_shifted_logits_are_read_in_place(device, cols):
    """logits[:, :-1], as language models have it, and rows of a wider matrix."""
    logits, target = drawn(device, 4, 6, cols, dtype=torch.float16, ignored=0)
    wide, _ = drawn(device, 8, cols + 3)
    op, options = record("cross_entropy"), (-100, 0.0, 0.0, 1, False)  # does not look at labels
    op(logits, target, *options)  # loads the kernels
    with torch.profiler.profile() as profile:
        a = op(logits[:, :-1], target[:, 1:], *options)
        b = op(wide[:, 2:-1], target.reshape(-1)[:8], *options)
    assert not {"aten::clone", "aten::copy_"} & {e.name for e in profile.events()}
    agree(logits[:, :-1], target[:, 1:])
    agree(wide[:, 2:-1], target.reshape(-1)[:8])
    assert a.isfinite()
    assert b.isfinite()


@each_device
def test_what_is_masked_with_minus_infinity_has_no_part(device):
    logits, target = drawn(device, 6, 70, ignored=0)
    masked = torch.arange(70, device=logits.device) >= 40
    some = logits.detach().masked_fill(masked, -torch.inf).requires_grad_()
    target = target % 40
    loss = opforge.cross_entropy(some, target)
    right = truth(some[:, :40], target)
    torch.testing.assert_close(loss.double(), right, atol=2e-6, rtol=2e-6)
    loss.backward()
    assert not some.grad[:, 40:].any()
    assert some.grad[:, :40].all()
    some = logits.detach().masked_fill(masked.flip(0), -torch.inf)  # from the first column on
    target = torch.full_like(target, 69)
    assert opforge.cross_entropy(some, target).isfinite()
    assert opforge.cross_entropy(some, target, label_smoothing=0.1) == torch.inf


@each_device
def test_large_logits_keep_their_digits(device):
    """Around 10,000 a float has three digits after the point; differences of logits have more."""
    logits, target = drawn(device, 5, 33)
    far = (logits.detach() + 10000).requires_grad_()
    opforge.cross_entropy(far, target, label_smoothing=0.1).backward()
    exact = (far.detach() - 10000).requires_grad_()
    truth(exact, target, label_smoothing=0.1).backward()
    torch.testing.assert_close(far.grad, exact.grad, atol=1e-6, rtol=1e-4)


@each_device
@pytest.mark.parametrize("cols", [33, 40])
def test_an_ignored_row_may_hold_anything(device, cols):
    logits, target = drawn(device, 6, cols, ignored=0)
    target[2] = -100
    with torch.no_grad():
        logits[2] = torch.nan
    loss = opforge.cross_entropy(logits, target, z_loss=1e-3)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()
    assert not logits.grad[2].any()


@each_device
@pytest.mark.parametrize("cols", [33, 40])
@pytest.mark.parametrize("label", [-1, 40, 2**40, -(2**40)])
def test_the_op_gives_nan_for_a_label_out_of_range(device, label, cols):
    logits, target = drawn(device, 6, cols)
    target[2] = label
    loss = record("cross_entropy")(logits, target, -100, 0.0, 0.0, 0, False)
    loss.sum().backward()
    row = torch.arange(6, device=loss.device) == 2
    assert torch.equal(loss.isnan(), row)
    assert torch.equal(logits.grad.isnan().all(-1), row)
    assert torch.equal(logits.grad.isnan().any(-1), row)


def test_on_the_cpu_a_label_out_of_range_is_an_error():
    logits, target = drawn("cpu", 2, 3, 33, ignored=0)
    for label in (33, -1):
        target[1, 2] = label
        expected = rf"target holds {label} at \(1, 2\), .*class, 0 to 32, nor ignore_index, -100"
        with pytest.raises(IndexError, match=expected):
            opforge.cross_entropy(logits, target)
    assert opforge.cross_entropy(logits, target, ignore_index=-1).isfinite()


@pytest.mark.cuda
def test_on_a_gpu_it_is_an_error_if_asked_for(monkeypatch):
    logits, target = drawn("cuda", 6, 33)
    target[3] = 33
    assert opforge.cross_entropy(logits, target).isnan()
    monkeypatch.setenv("OPFORGE_CHECK_LABELS", "1")
    with pytest.raises(IndexError, match=r"target holds 33 at \(3,\)"):
        opforge.cross_entropy(logits, target)


@each_device
@each_reduction
@pytest.mark.parametrize("cols", [40, 41])
def test_on_request_the_gradient_is_written_over_the_logits(device, reduction, cols):
    leaf, target = drawn(device, 2, 5, cols)
    got = {}
    for overwrite in (False, True):
        logits = leaf * 1
        logits.register_hook(lambda grad: got.__setitem__("at", grad.data_ptr()))
        loss = opforge.cross_entropy(
            logits, target, reduction=reduction, overwrite_logits=overwrite
        )
        (got[overwrite],) = torch.autograd.grad(loss.sum(), leaf, retain_graph=True)
        assert (got["at"] == logits.data_ptr()) == overwrite
        if overwrite:
            assert torch.equal(logits, got[False])
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                torch.autograd.grad(loss.sum(), leaf)
    assert torch.equal(got[True], got[False])


def test_rows_that_share_memory_are_not_overwritten():
    leaf, target = drawn("cpu", 1, 9, ignored=0)
    logits, labels = (leaf * 1).expand(4, 9), target.expand(4)
    loss = opforge.cross_entropy(logits, labels, overwrite_logits=True)
    (got,) = torch.autograd.grad(loss, leaf)
    (right,) = torch.autograd.grad(truth(leaf, target), leaf)
    torch.testing.assert_close(got, right)


def test_a_gradient_that_is_differentiated_again_leaves_the_logits():
    leaf, target = drawn("cpu", 5, 9, dtype=torch.float64)
    logits = leaf * 1
    before = logits.detach().clone()
    loss = opforge.cross_entropy(logits, target, overwrite_logits=True)
    (grad,) = torch.autograd.grad(loss, leaf, create_graph=True)
    assert torch.equal(logits, before)
    (again,) = torch.autograd.grad(grad.square().sum(), leaf)
    (first,) = torch.autograd.grad(truth(leaf, target), leaf, create_graph=True)
    (right,) = torch.autograd.grad(first.square().sum(), leaf)
    torch.testing.assert_close(again, right)


@pytest.mark.parametrize("overwrite", [False, True])
def test_compiled_in_one_graph(overwrite):
    def step(x, target):
        logits = x * 2
        loss = opforge.cross_entropy(logits, target, z_loss=1e-3, overwrite_logits=overwrite)
        return loss, logits

    x, target = drawn("cpu", 5, 9)
    for run in (step, torch.compile(step, backend="aot_eager", fullgraph=True)):
        loss, logits = run(x, target)
        (grad,) = torch.autograd.grad(loss, x)
        (right,) = torch.autograd.grad(truth(x * 2, target, z_loss=1e-3), x)
        torch.testing.assert_close(grad, right)
        compiled = run is not step
        if compiled or not overwrite:
            assert torch.equal(logits, x * 2)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"label_smoothing": 1.5}, ValueError, "label_smoothing must be from 0 to 1, got 1.5"),
        ({"z_loss": -1.0}, ValueError, "z_loss must be finite and not negative, got -1.0"),
        ({"z_loss": math.nan}, ValueError, "z_loss must be finite"),
        ({"reduction": "max"}, ValueError, "reduction must be .* got 'max'"),
        ({"target": torch.zeros(4, dtype=torch.int64)}, ValueError, r"shape \(5,\) .* got \(4,\)"),
        ({"target": torch.zeros(5)}, TypeError, "target has dtype torch.float32; supported: int64"),
        (
            {"target": torch.full((5, 9), 1 / 9)},
            TypeError,
            r"cross_entropy: target has dtype torch.float32 and the shape of the logits, \(5, 9\): "
            r"class probabilities are not supported, only labels .*give target.argmax\(-1\); .* "
            r"otherwise use torch\.nn\.functional\.cross_entropy$",
        ),
        ({"logits": torch.zeros(5, 0)}, ValueError, "at least one class"),
        ({"logits": torch.tensor(1.0)}, ValueError, "at least one class"),
    ],
)
def test_what_makes_no_loss_is_refused(change, error, words):
    logits, target = drawn("cpu", 5, 9, ignored=0)
    arguments = {"logits": logits, "target": target, **change}
    if "logits" in change:
        arguments["target"] = torch.full((5,), -100)
    with pytest.raises(error, match=words):
        opforge.cross_entropy(**arguments)


def test_the_module_refuses_probabilities_by_the_dim_of_its_classes():
    probabilities = torch.full((3, 7, 4), 1 / 7)
    words = r"nn\.CrossEntropyLoss: .*class probabilities are not supported.* target\.argmax\(1\)"
    with pytest.raises(TypeError, match=words):
        opforge.nn.CrossEntropyLoss()(torch.randn(3, 7, 4), probabilities)


@each_device
def test_the_module_has_the_layout_of_torch(device):
    logits, target = drawn(device, 3, 7, 4)
    target = target.new_tensor([[0, 1, -100, 6]] * 3)
    for options in ({}, {"reduction": "sum", "label_smoothing": 0.2}, {"ignore_index": 1}):
        ours, theirs = (n.CrossEntropyLoss(**options) for n in (opforge.nn, torch.nn))
        labels = target.clamp(min=0) if "ignore_index" in options else target
        torch.testing.assert_close(ours(logits, labels), theirs(logits, labels))
        torch.testing.assert_close(ours(logits[0].t(), labels[0]), theirs(logits[0].t(), labels[0]))
        torch.testing.assert_close(
            ours(logits[0, :, 0], labels[0, 0]), theirs(logits[0, :, 0], labels[0, 0])
        )
    last = opforge.nn.CrossEntropyLoss(dim=-1)
    torch.testing.assert_close(last(logits.movedim(1, -1), target), last(logits.mT, target))
    assert "label_smoothing=0.0" in repr(last)


def test_the_module_refuses_class_weights():
    with pytest.raises(ValueError, match=r"class weights are not supported; use torch\.nn"):
        opforge.nn.CrossEntropyLoss(torch.ones(4))


@each_device
def test_an_empty_batch_may_have_any_strides(device):
    logits = torch.randn(4, 6)[:0, ::2].to(device).requires_grad_()
    assert logits.stride() == (6, 2)
    target = torch.zeros(0, dtype=torch.int64, device=device)
    loss = opforge.cross_entropy(logits, target, reduction="none")
    loss.sum().backward()
    assert loss.shape == (0,)
    assert logits.grad.shape == (0, 3)
