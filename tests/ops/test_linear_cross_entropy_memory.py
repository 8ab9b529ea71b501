# SPDX-License-Identifier: Apache-2.0
"""The memory that linear_cross_entropy takes, where its gradients are kept, and low_memory."""

from __future__ import annotations

import itertools

import pytest
import torch
from linear_losses import agree, drawn, each_choice, each_reduction, ours, truth
from op_cases import each_device, each_dtype, record
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from opforge.ops.families.losses import rows_at_once


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
@pytest.mark.nightly
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
