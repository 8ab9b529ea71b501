# SPDX-License-Identifier: Apache-2.0
"""The inputs of a benchmark: they change, keep their meaning, and tell what was done to them."""

from __future__ import annotations

import random

import pytest
import torch

from opforge.bench.inputs import DeviceMake, InputSet, make_sets

GUARDED = {
    "contiguous": lambda: torch.randn(33, 65),
    "transposed": lambda: torch.randn(33, 65).t(),
    "apart": lambda: torch.randn(33, 65)[:, 1::2],
    "expanded": lambda: torch.randn(1, 65).expand(33, 65),
    "a scalar": lambda: torch.randn(()),
    "bfloat16": lambda: torch.randn(33, 65).bfloat16(),
    "float64": lambda: torch.randn(33, 65).double(),
}


def sets_of(*case: object, count: int) -> list[InputSet]:
    """Of a case whose float tensors are just made at random."""
    make = DeviceMake(torch.float32, "cpu")
    make.made.extend(a for a in case if isinstance(a, torch.Tensor) and a.is_floating_point())
    return make_sets(make, lambda make: case, count)


def guarded(*case: object) -> InputSet:
    (found,) = sets_of(*case, count=1)
    return found


@pytest.mark.parametrize("kind", GUARDED)
def test_a_guarded_tensor_is_like_the_one_it_stands_for(kind):
    original = GUARDED[kind]()
    inputs = guarded(original)
    (tensor,) = inputs.case
    assert (tensor.dtype, tensor.shape, tensor.stride()) == (
        original.dtype,
        original.shape,
        original.stride(),
    )
    assert torch.equal(tensor, original)
    assert tensor.data_ptr() % 256 == tensor.untyped_storage().data_ptr() % 256  # still aligned
    assert inputs.damages() == []


@pytest.mark.parametrize("kind", GUARDED)
def test_a_change_alters_every_element_and_leaves_no_trace(kind):
    torch.manual_seed(0)
    original = GUARDED[kind]()
    inputs = guarded(original)
    (tensor,) = inputs.case
    version, strides, draw = tensor._version, tensor.stride(), random.Random(3)
    for _ in range(3):
        before = tensor.clone()
        inputs.change(draw)
        same = int((tensor == before).sum())
        assert same <= (0.01 * tensor.numel() if tensor.dtype == torch.bfloat16 else 0)
        assert 0 < float(tensor.abs().max()) <= float(original.abs().max())
    assert (tensor._version, tensor.stride()) == (version, strides)
    assert inputs.damages() == []


def test_all_sets_change_and_the_same_draw_gives_the_same_values():
    sets = sets_of(torch.randn(40, 50), 3, count=3)
    for draw in (random.Random(5), random.Random(5)):
        for one in sets:
            one.change(draw)
        values = [one.case[0].clone() for one in sets]
    for one in sets:
        one.change(random.Random(6))
    draw = random.Random(5)
    for one, value in zip(sets, values, strict=True):
        assert not torch.equal(one.case[0], value)
        one.change(draw)
        assert torch.equal(one.case[0], value)
        assert one.case[1] == 3
    assert not torch.equal(values[0], values[1])


def test_what_is_made_of_random_numbers_keeps_its_meaning_and_changes():
    def case(make):
        return make(8, 8).tril(), torch.randint(0, 5, (100,)), make(4)

    (inputs,) = make_sets(DeviceMake(torch.float32, "cpu"), case, 1)
    triangles, labels, draw = set(), set(), random.Random(0)
    for _ in range(20):
        inputs.change(draw)
        triangle, label, _ = inputs.case
        assert torch.equal(triangle, triangle.tril())
        assert 0 <= int(label.min()) <= int(label.max()) < 5
        triangles.add(float(triangle.sum()))
        labels.add(tuple(label.tolist()))
    assert len(triangles) == len(labels) == 3
    assert inputs.damages() == []


@pytest.mark.parametrize("kind", ["contiguous", "apart", "bfloat16", "labels"])
@pytest.mark.parametrize("where", ["before", "behind", "on both sides"])
def test_a_write_outside_of_a_tensor_is_found_and_repaired(kind, where):
    inputs = guarded(torch.arange(50) if kind == "labels" else GUARDED[kind]())
    inputs.change(random.Random(0))
    (tensor,) = inputs.case
    memory = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    first = tensor.data_ptr() - memory.data_ptr()
    last = tensor[(-1,) * tensor.dim()].data_ptr() - memory.data_ptr()
    if where != "behind":
        memory[first - 1] = 0
    if where != "before":
        memory[last + tensor.element_size()] = 0
    assert inputs.damages() == ["writes outside of its tensors: a canary beside an input is gone"]
    assert inputs.damages() == []


@pytest.mark.parametrize("kind", [*GUARDED, "labels"])
def test_a_changed_input_is_found_and_repaired(kind):
    original = torch.arange(50) if kind == "labels" else GUARDED[kind]()
    inputs = guarded(3, original, torch.randn(4))
    inputs.change(random.Random(0))
    tensor = inputs.case[1]
    before = tensor.clone()
    tensor.as_strided((1,), (1,)).add_(1)
    assert inputs.damages() == ["changes its inputs"]
    assert torch.equal(tensor, before)
    assert inputs.damages() == []


def test_an_input_that_becomes_nan_is_a_changed_one_and_a_nan_that_was_there_is_not():
    x = torch.randn(5000)
    x[7] = float("nan")
    inputs = guarded(x)
    inputs.change(random.Random(0))
    assert inputs.damages() == []
    inputs.case[0][3] = float("nan")
    assert inputs.damages() == ["changes its inputs"]
