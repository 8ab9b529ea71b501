# SPDX-License-Identifier: Apache-2.0
"""linear_cross_entropy and its module against torch in float64, and the memory they take."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from op_cases import each_device, each_dtype, record
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import opforge
from opforge import Make
from opforge.ops.families.losses import in_reach, rows_at_once
from opforge.truth import cases, compare, inputs

each_reduction = pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
each_choice = pytest.mark.parametrize("low_memory", [False, True])


def drawn(device, rows, features, classes, dtype=torch.float32, ignored=0.25, bias=True):
    """Input, weight and bias that want gradients, and labels, some of them -100."""
    generator = torch.Generator().manual_seed(5)
    shapes = [(rows, features), (classes, features), (classes,)][: 3 if bias else 2]
    leaves = [torch.randn(s, generator=generator) / features**0.5 for s in shapes]
    target = torch.randint(0, classes, (rows,), generator=generator)
    target[torch.rand(rows, generator=generator) < ignored] = -100
    return [x.to(device, dtype).requires_grad_() for x in leaves], target.to(device)


def truth(leaves, target, *, reduction="mean", z_loss=0.0, ignore_index=-100, label_smoothing=0.0):
    """torch's loss in float64, of all logits, with the z-loss written out."""
    logits = functional.linear(*[x.double() for x in leaves])
    losses = functional.cross_entropy(
        logits,
        target,
        reduction="none",
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )
    kept = target != ignore_index
    losses = losses + kept * z_loss * logits.logsumexp(-1).square()
    if reduction == "none":
        return losses
    return losses.sum() / kept.sum() if reduction == "mean" else losses.sum()


def ours(leaves, target, **options):
    return opforge.linear_cross_entropy(*leaves[:2], target, *leaves[2:], **options)


def agree(leaves, target, chunk=0, low_memory=False, **options):
    """Loss and gradients; 16-bit logits and gradients are rounded on the way."""
    got = ours(leaves, target, chunk=chunk, low_memory=low_memory, **options)
    right = truth(leaves, target, **options)
    loose = {torch.float16: 4e-3, torch.bfloat16: 3e-2}.get(leaves[0].dtype, 1e-5)
    assert got.dtype == (torch.float64 if leaves[0].dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(got.double(), right, atol=loose, rtol=loose)
    factors = torch.linspace(-1, 2, got.numel(), dtype=torch.float64).reshape(got.shape).to(right)
    found = torch.autograd.grad(got, leaves, factors.to(got.dtype))
    expected = torch.autograd.grad(right, leaves, factors)
    for f, e, x in zip(found, expected, leaves, strict=True):
        assert f.dtype == x.dtype
        size = float(e.abs().max())
        torch.testing.assert_close(f, e, atol=loose * max(size, 1e-3), rtol=loose)
    return found


@each_device
@each_dtype
@each_reduction
def test_it_is_that_of_torch(device, dtype, reduction):
    agree(*drawn(device, 7, 8, 33, dtype, ignored=0), chunk=3, reduction=reduction)
    leaves, target = drawn(device, 12, 16, 40, dtype, bias=False)
    found = agree(leaves, target, chunk=4, reduction=reduction)
    assert (target == -100).any()
    assert not found[0][target == -100].any()


@each_device
@each_reduction
@pytest.mark.parametrize("options", [{"label_smoothing": 0.1}, {"z_loss": 1e-2}])
def test_smoothing_and_z_loss(device, reduction, options):
    leaves, target = drawn(device, 9, 8, 50)
    agree(leaves, target, chunk=4, reduction=reduction, **options)
    agree(leaves, target.clamp(min=4), ignore_index=4, **options)


@each_device
@pytest.mark.parametrize("chunk", [1, 2, 5, 6, 11, 12, 100])
def test_chunks_of_any_size(device, chunk):
    agree(*drawn(device, 11, 8, 24), chunk=chunk)


@each_device
def test_one_class(device):
    for grad in agree(*drawn(device, 5, 4, 1, ignored=0)):
        assert not grad.any()


@each_device
def test_of_no_rows_the_mean_is_nan_and_the_gradients_are_zero(device):
    leaves, target = drawn(device, 5, 4, 9)
    loss = ours(leaves, torch.full_like(target, -100))
    assert loss.isnan()
    assert not any(g.any() for g in torch.autograd.grad(loss, leaves))
    leaves, target = drawn(device, 0, 4, 9)
    assert ours(leaves, target).isnan()
    loss = ours(leaves, target, reduction="sum")
    assert loss == 0
    assert not any(g.any() for g in torch.autograd.grad(loss, leaves))


@each_device
def test_a_factor_that_comes_late_is_not_rounded(device):
    """1 / 3 in bfloat16 is wrong by a thousandth; gradients of 1,000 rows would all lean by it."""
    leaves, target = drawn(device, 6, 8, 24, torch.bfloat16, bias=False, ignored=0)
    loss = ours(leaves, target, reduction="sum")
    whole = torch.autograd.grad(loss, leaves, retain_graph=True)
    third = torch.autograd.grad(loss, leaves, torch.tensor(1 / 3, device=loss.device))
    for a, b in zip(whole, third, strict=True):
        ratio = (b.double() / a.double())[a != 0].mean()
        assert abs(float(ratio) * 3 - 1) < 1e-3


@each_device
def test_leading_dims(device):
    leaves, target = drawn(device, 12, 8, 33, bias=False)
    x, weight = leaves
    shaped = opforge.linear_cross_entropy(x.unflatten(0, (3, 4)), weight, target.view(3, 4))
    assert torch.equal(shaped, ours(leaves, target))
    each = opforge.linear_cross_entropy(
        x.unflatten(0, (3, 4))[:, 1:], weight, target.view(3, 4)[:, 1:], reduction="none"
    )
    right = truth(leaves, target, reduction="none").view(3, 4)[:, 1:]
    torch.testing.assert_close(each.double(), right, atol=1e-5, rtol=1e-5)
    one = opforge.linear_cross_entropy(x[1], weight, target.new_tensor(3), reduction="none")
    assert one.shape == ()


def test_only_what_requires_a_gradient_gets_one():
    (x, weight), target = drawn("cpu", 6, 8, 24, bias=False)
    for frozen, kept in ((weight, x), (x, weight)):
        (right,) = torch.autograd.grad(truth((x, weight), target), kept)
        frozen.requires_grad_(False)
        with torch.profiler.profile() as profile:
            (got,) = torch.autograd.grad(ours((x, weight), target), kept)
        torch.testing.assert_close(got, right)
        products = [e.name for e in profile.events() if e.name in ("aten::mm", "aten::addmm_")]
        assert products == (["aten::mm"] * 2 if kept is x else ["aten::mm", "aten::addmm_"])
        frozen.requires_grad_(True)
    with torch.no_grad():
        assert not ours((x, weight), target).requires_grad


def test_gradients_can_be_taken_twice_and_differentiated():
    leaves, target = drawn("cpu", 6, 5, 9, torch.float64)
    loss = ours(leaves, target, chunk=4)
    first, second = (torch.autograd.grad(loss, leaves, retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    twice = []
    for loss in (ours(leaves, target, chunk=4), truth(leaves, target)):
        grads = torch.autograd.grad(loss, leaves, create_graph=True)
        twice.append(torch.autograd.grad(sum(g.square().sum() for g in grads), leaves))
    for a, b in zip(*twice, strict=True):
        torch.testing.assert_close(a, b)


@each_choice
@each_reduction
def test_compiled_in_one_graph(reduction, low_memory):
    leaves, target = drawn("cpu", 7, 8, 24)
    options = {"reduction": reduction, "chunk": 3, "low_memory": low_memory}
    compiled = torch.compile(
        lambda leaves, target: ours(leaves, target, **options).sum(),
        backend="aot_eager",
        fullgraph=True,
    )
    right = truth(leaves, target, reduction=reduction).sum()
    loss = compiled(leaves, target)
    torch.testing.assert_close(loss.double(), right, atol=1e-5, rtol=1e-5)
    expected = torch.autograd.grad(right, leaves)
    for g, e in zip(torch.autograd.grad(loss, leaves), expected, strict=True):
        torch.testing.assert_close(g, e, atol=1e-5, rtol=1e-5)


def test_autocast_is_that_of_linear():
    leaves, target = drawn("cpu", 7, 16, 24)
    with torch.autocast("cpu", torch.bfloat16):
        got = ours(leaves, target)
        right = functional.cross_entropy(functional.linear(*leaves).float(), target)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, right)
    grads = torch.autograd.grad(got, leaves)
    assert all(g.dtype == torch.float32 for g in grads)


class Memory(TorchDispatchMode):
    """The most bytes that results of torch's and our functions had at one time, without inputs."""

    def __init__(self, inputs):
        super().__init__()
        self.inputs = {x.untyped_storage()._cdata for x in inputs}
        self.alive, self.most = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else (result,):
            storage = one.untyped_storage()
            if storage._cdata not in self.inputs:
                self.alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.alive = {k: v for k, v in self.alive.items() if not v[0].expired()}
        self.most = max(self.most, sum(size for _, size in self.alive.values()))
        return result


def most_bytes(leaves, target, *options):
    """The most that exists during a step, and its gradients."""
    with Memory([*leaves, target]) as memory:
        grads = step_of_record(leaves, target, *options)
    return memory.most, grads


def step_of_record(leaves, target, reduction, low_memory, may_overwrite=True):
    """Forward and backward by what the record composes; the gradients of input and weight."""
    op = record("linear_cross_entropy")
    arguments = *(x.detach() for x in leaves), target, None, -100, 0.0, 0.0
    how = ["none", "mean", "sum"].index(reduction), 0, low_memory
    loss, *saved = op.composed(*arguments, *how, 3)
    needs = True, True, False, may_overwrite
    factor = torch.ones_like(loss)
    return op.backward.composed(factor, *arguments[:4], *saved, *arguments[4:], *how, *needs)[:2]


@each_dtype
@each_reduction
@each_choice
def test_logits_are_never_all_there(dtype, reduction, low_memory):
    """What exists at a time beside gradients and a wide sum, where logits are nearly all of it."""
    rows, features, classes = 640, 16, 16384
    leaves, target = drawn("cpu", rows, features, classes, dtype, bias=False)
    most, grads = most_bytes(leaves, target, reduction, low_memory)
    assert [g.shape for g in grads] == [x.shape for x in leaves]
    gradients = sum(g.nbytes for g in grads) + leaves[1].numel() * max(4, dtype.itemsize)
    full = 2 * rows * classes * dtype.itemsize  # the logits and their gradient
    assert full / 16 <= most - gradients <= full / 8  # the measurement sees them


@each_reduction
@pytest.mark.parametrize(
    ("dtype", "low_memory", "sums"),
    [
        (torch.bfloat16, False, 2),
        (torch.bfloat16, True, 1),
        (torch.float16, False, None),
        (torch.float32, False, 1),
        (torch.float32, True, 1),
        (torch.float64, True, 1),
    ],
)
def test_the_gradient_of_the_weight_is_there_once(dtype, reduction, low_memory, sums):
    """What exists at a time, where that gradient is nearly all of it: ``sums`` times its size."""
    leaves, target = drawn("cpu", 10, 256, 8192, dtype, bias=False)
    most, grads = most_bytes(leaves, target, reduction, low_memory)
    assert grads[1].dtype == dtype
    size = grads[1].nbytes
    if sums is None:  # float16: the float32 sum waits for the factor, if there is one to come
        sums = 2 if reduction == "none" else 3
    assert sums <= most / size <= sums + 0.5
    assert grads[1].untyped_storage().nbytes() <= 1.001 * size  # and no longer than it is needed


def test_a_step_takes_no_more_than_the_record_does():
    """The peak of the CPU's allocator in a public call, in float32: products take none."""
    leaves, target = drawn("cpu", 10, 256, 8192, bias=False)
    torch.autograd.grad(ours(leaves, target), leaves)  # loads kernels
    with torch.profiler.profile(profile_memory=True) as profile:
        grads = torch.autograd.grad(ours(leaves, target), leaves)
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    assert 1 <= max(itertools.accumulate(sizes)) / grads[1].nbytes <= 1.5


def test_gradients_that_must_stay_are_copied():
    leaves, target = drawn("cpu", 10, 256, 8192, torch.bfloat16, bias=False)
    most, grads = most_bytes(leaves, target, "mean", True, False)
    assert most / grads[1].nbytes >= 2


@each_device
@each_dtype
@each_reduction
def test_low_memory_is_that_of_torch(device, dtype, reduction):
    options = {"reduction": reduction, "low_memory": True}
    agree(*drawn(device, 7, 8, 33, dtype, ignored=0), chunk=3, **options)
    agree(*drawn(device, 12, 16, 40, dtype, bias=False), chunk=4, **options)
    agree(*drawn(device, 9, 8, 50, dtype), z_loss=1e-2, label_smoothing=0.1, **options)


def error_of_weight_gradient(low_memory, chunks):
    """Relative to the truth of the same logits' gradients, root of the mean square."""
    leaves, target = drawn("cpu", 512, 32, 64, torch.bfloat16, bias=False, ignored=0)
    expected = torch.autograd.grad(truth(leaves, target), leaves[1])[0].double()
    loss = ours(leaves, target, chunk=512 // chunks, low_memory=low_memory)
    found = torch.autograd.grad(loss, leaves[1])[0].double()
    return float((found - expected).norm() / expected.norm())


def test_the_price_of_low_memory_is_a_rounding_per_chunk():
    """bfloat16 rounds by at most 2^-9; a float32 sum does it once, however many chunks there are.

    A sum that is rounded after each of n chunks is off by about sqrt(n / 2) as much.
    """
    wide = [error_of_weight_gradient(False, n) for n in (2, 32)]
    low = [error_of_weight_gradient(True, n) for n in (2, 32)]
    assert max(wide) < 1.5 * 2**-9  # logits and their gradients are rounded, too
    assert wide[1] < 1.1 * wide[0]
    assert 2 * low[0] < low[1] < 2**-9 * 16**0.5


@each_choice
@each_dtype
def test_a_second_backward_finds_what_the_first_found(dtype, low_memory):
    leaves, target = drawn("cpu", 12, 8, 24, dtype)
    loss = ours(leaves, target, chunk=4, low_memory=low_memory)
    runs = [torch.autograd.grad(loss, leaves, retain_graph=again) for again in (True, True, False)]
    for others in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], others, strict=True))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(loss, leaves)


def test_the_last_backward_takes_the_memory_of_the_forward():
    """With a graph that is kept there is a copy; either way nobody sees another's gradient."""
    leaves, target = drawn("cpu", 6, 8, 24, bias=False)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        loss = ours(leaves, target)
    places = [t.data_ptr() for t in kept]
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    last = torch.autograd.grad(loss, leaves, torch.tensor(2.0))
    assert not any(g.data_ptr() in places for g in first)
    assert all(g.data_ptr() in places for g in last)
    assert all(torch.equal(2 * a, b) for a, b in zip(first, last, strict=True))


def test_a_batch_of_gradients_is_not_made_in_one_place():
    leaves, target = drawn("cpu", 6, 8, 24, bias=False)
    factors = torch.tensor([1.0, 2.0, 4.0])
    loss = ours(leaves, target)
    with torch.profiler.profile() as profile:
        batch = torch.autograd.grad(loss, leaves, factors, is_grads_batched=True)
    assert "aten::mm" not in [e.name for e in profile.events()]  # what was kept was there each time
    right = torch.autograd.grad(ours(leaves, target), leaves)
    for b, r in zip(batch, right, strict=True):
        torch.testing.assert_close(b, factors.view(3, 1, 1) * r)


def test_from_a_mean_of_bfloat16_nothing_is_rounded_twice():
    """The 1 / rows is in what the forward keeps: the backward of the loss itself multiplies by 1"""
    leaves, target = drawn("cpu", 5, 8, 24, torch.bfloat16, bias=False, ignored=0)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        loss = ours(leaves, target)
    grads = torch.autograd.grad(loss, leaves, retain_graph=True)
    for g in grads:
        assert any(t.dtype == g.dtype and torch.equal(t, g) for t in kept)


def test_small_gradients_of_float16_survive_with_a_scaled_loss():
    """1 / rows alone would take them below the smallest float16: it comes with the scale."""
    leaves, target = drawn("cpu", 64, 8, 40, torch.float16, bias=False, ignored=0)
    with torch.no_grad():
        leaves[0].mul_(2e-5)
    scale = torch.tensor(2.0**14)
    for low_memory in (False, True):
        got = torch.autograd.grad(ours(leaves, target, low_memory=low_memory), leaves[1], scale)
        right = torch.autograd.grad(truth(leaves, target), leaves[1], scale.double())
        assert (got[0] - right[0]).norm() < 1e-2 * right[0].norm()


def test_how_many_rows_at_once():
    vocabulary = 2 * 128256
    assert rows_at_once(8192, vocabulary, False) == 1664
    assert rows_at_once(1000, vocabulary, False) == 200
    assert rows_at_once(20, vocabulary, False) == 16  # 4 MB
    assert rows_at_once(7, vocabulary, False) == 7
    assert rows_at_once(0, vocabulary, False) >= 1
    assert rows_at_once(3, 1 << 40, False) == 1
    assert rows_at_once(65536, vocabulary, False) == 2048  # logits do not grow with the rows
    assert rows_at_once(65536, vocabulary, True) == 640
    assert rows_at_once(1000, vocabulary, True) == 200


@each_device
def test_the_op_gives_nan_for_a_label_out_of_range(device):
    leaves, target = drawn(device, 6, 8, 33)
    target[2] = 33
    options = -100, 0.0, 0.0, 0, 4, False, 0
    loss = record("linear_cross_entropy")(*leaves[:2], target, leaves[2], *options)
    assert torch.equal(loss.isnan(), torch.arange(6, device=loss.device) == 2)


def test_on_the_cpu_a_label_out_of_range_is_an_error():
    leaves, target = drawn("cpu", 6, 8, 33)
    target[2] = 33
    expected = r"linear_cross_entropy: target holds 33 at \(2,\), .*class, 0 to 32, nor ignore"
    with pytest.raises(IndexError, match=expected):
        ours(leaves, target)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"label_smoothing": -0.1}, ValueError, "label_smoothing must be from 0 to 1, got -0.1"),
        ({"z_loss": -1.0}, ValueError, "z_loss must be finite and not negative, got -1.0"),
        (
            {"input": torch.ones(2, 3, 4), "target": torch.zeros(3, 2, dtype=torch.int64)},
            ValueError,
            r"target \(\.\.\.\), got \(2, 3, 4\), \(9, 4\) and \(3, 2\)",
        ),
        ({"reduction": "max"}, ValueError, "reduction must be .* got 'max'"),
        ({"chunk": -1}, ValueError, "chunk must be a number of rows, or 0 .* got -1"),
        ({"low_memory": "yes"}, TypeError, "low_memory must be True or False, got 'yes'"),
        ({"target": torch.zeros(4, dtype=torch.int64)}, ValueError, r"shape \(5,\) .* got \(4,\)"),
        ({"target": torch.zeros(5)}, TypeError, "target has dtype torch.float32; supported: int64"),
        (
            {"target": torch.full((5, 9), 1 / 9)},
            TypeError,
            r"linear_cross_entropy: target .* \(5, 9\): class probabilities are not supported",
        ),
        ({"weight": torch.zeros(9, 3)}, ValueError, r"got \(5, 4\) and \(9, 3\)"),
        ({"weight": torch.zeros(9, 4).half()}, TypeError, "weight is torch.float16; convert"),
        ({"bias": torch.zeros(8)}, ValueError, r"bias must have .* got \(8,\)"),
    ],
)
def test_what_makes_no_loss_is_refused(change, error, words):
    (x, weight, bias), target = drawn("cpu", 5, 4, 9, ignored=0)
    arguments = {"input": x, "weight": weight, "target": target, "bias": bias, **change}
    with pytest.raises(error, match=words):
        opforge.linear_cross_entropy(**arguments)


@each_device
def test_the_module(device):
    leaves, target = drawn(device, 6, 8, 33)
    module = opforge.nn.LinearCrossEntropyLoss(label_smoothing=0.1, reduction="sum", chunk=4)
    got = module(*leaves[:2], target, leaves[2])
    assert torch.equal(got, ours(leaves, target, label_smoothing=0.1, reduction="sum", chunk=4))
    assert "chunk=4, low_memory=False" in repr(module)
    low = opforge.nn.LinearCrossEntropyLoss(chunk=2, low_memory=True)
    found = torch.autograd.grad(low(*leaves[:2], target, leaves[2]), leaves)
    right = torch.autograd.grad(ours(leaves, target, chunk=2, low_memory=True), leaves)
    assert all(torch.equal(a, b) for a, b in zip(found, right, strict=True))
    with pytest.raises(ValueError, match=r"class weights are not supported; use torch\.nn"):
        opforge.nn.LinearCrossEntropyLoss(torch.ones(4))


def test_a_record_that_is_composed_composes_its_backward():
    from opforge.errors import RecordError
    from opforge.op import Op
    from opforge.registration.register import register

    half = Op(
        schema="half_composed(Tensor x) -> Tensor y",
        reference=torch.relu,
        composed=torch.relu,
        namespace="opforge_test_composed",
    )
    with pytest.raises(RecordError, match="half_composed is composed, but its backward is not"):
        register(half)


def test_strides_beyond_32_bits_do_not_reach_a_product():
    """Nor does that of one row, which does not count, and which contiguous() would leave."""
    near = torch.zeros(2, 5)
    assert in_reach(near) is near
    assert in_reach(torch.empty_strided((1, 5), (2**32, 1))).stride() == (5, 1)


@pytest.mark.parametrize("which", range(4))  # mean, with low_memory, sum, none with low_memory
@pytest.mark.parametrize("subnormal", [0, 1])
def test_what_rounding_twice_does_to_subnormal_gradients_is_allowed_for(which, subnormal):
    """The gradients kept are rounded before the factor comes, chunks before they are added."""
    op = record("linear_cross_entropy")
    case = list(list(op.iter_cases(Make(torch.bfloat16)))[which])
    case[subnormal] = (case[subnormal].double() * 2**-129).bfloat16()
    leaves = cases.as_leaves(tuple(case))
    factors = functools.partial(inputs.random_gradient, seed=0)
    cases.check_backward(op, leaves, factors)

    def off_by_16(*args):
        loss = op(*args)
        assert all(a.requires_grad for a in args[:2])
        args[1 - subnormal].register_hook(lambda grad: grad + 2.0**-129)
        return loss

    with pytest.raises(compare.Mismatch, match="is allowed"):
        cases.check_backward(op, leaves, factors, run=off_by_16)
