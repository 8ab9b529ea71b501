# SPDX-License-Identifier: Apache-2.0
"""The op.py of an inline op, which other processes load, computes the same."""

from __future__ import annotations

import json
import math
import shutil
import sys

import pytest
import torch
import torch.nn.functional as functional
from helpers import python

import opforge
from opforge.errors import RecordError
from opforge.op import Backward

SLOPE = 0.25
TABLE = torch.ones(3)
OPTIONS = {"low": -1.0, "names": ("a", "b"), "most": math.inf, "dtype": torch.float64}


def stretched(x, by=SLOPE):
    return x * by


def twice_stretched(x):
    """Calls another."""
    return stretched(stretched(x))


def many_parts(x):
    halves = [functional.relu(part) * math.e for part in (x, -x)]
    return sum(h.clamp(OPTIONS["low"], OPTIONS["most"]) for h in halves) + twice_stretched(x)


def countdown(x, n=3):
    return x if n == 0 else countdown(x + 1, n - 1)


def closing_over(shift):
    inner = shift * 2
    return lambda x: x + inner


def local_function():
    factor = 7

    def times(x):
        # the first line of the body
        return x * factor

    return times


def build_all():
    """Ops by name. Each takes one tensor."""
    found = {}

    def add(name, reference, **fields):
        found[name] = opforge.inline(f"{name}(Tensor x) -> Tensor y", reference, **fields)

    add("parts", many_parts)
    add("recursive", lambda x: countdown(x))
    add("closed", closing_over(3))
    add("local", local_function())
    add("built_in", torch.sin)
    up, down = (lambda x: x + SLOPE), (lambda x: x - SLOPE)  # Python 3.11 tells them apart
    if sys.version_info >= (3, 11):
        add("up", up)
        add("down", down)
    add("library", functional.softplus)
    add("own_op", lambda x: opforge.relu(x) + 1)
    other = found["closed"]
    add("other_op", lambda x: other(x) * 2)
    add("lines", lambda x: (
            x
            + SLOPE  # and more
        ))  # fmt: skip
    add("fields", lambda x: x * x, backward=lambda grad_y, x: 2 * grad_y * x, dtypes=(torch.float64,), operations=lambda x: x.numel())  # fmt: skip  # noqa: E501
    add("backward", torch.tan, cases=lambda make: [(make(3),)], backward=Backward(
        "backward_backward(Tensor grad_y, Tensor y) -> Tensor grad_x",
        lambda grad_y, y: grad_y * (1 + y * y)))  # fmt: skip
    return found


def test_another_process_computes_the_same():
    ops = build_all()
    x = torch.linspace(-2, 2, 7, dtype=torch.float64)
    code = """
        import json, sys, torch, opforge
        x = torch.linspace(-2, 2, 7, dtype=torch.float64)
        for folder in sys.argv[1:]:
            leaf = x.clone().requires_grad_()
            y = opforge.load(folder)(leaf)
            y.sum().backward()
            print(json.dumps([y.tolist(), leaf.grad.tolist()]))
    """
    said = python(code, *(op.folder for op in ops.values()), cwd="/").stdout.splitlines()
    for (name, op), line in zip(ops.items(), said, strict=True):
        leaf = x.clone().requires_grad_()
        y = op(leaf)
        y.sum().backward()
        assert json.loads(line) == [y.tolist(), leaf.grad.tolist()], name


def test_a_value_that_is_captured_makes_another_op():
    one = opforge.inline("shifted(Tensor x) -> Tensor y", closing_over(1))
    two = opforge.inline("shifted(Tensor x) -> Tensor y", closing_over(2))
    assert one(torch.zeros(1)) + 2 == two(torch.zeros(1))


def with_default():
    options = [2.0]
    return lambda x, by=options[0]: x * by


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        (lambda x: x + TABLE, "TABLE is a Tensor, and only numbers, strings"),
        (eval("lambda x: x + 2"), "the source of reference is not in a file; write it to one"),
        (with_default(), "a default uses options, a local variable"),
        (torch.nn.ReLU(), "reference is a ReLU; put a lambda around it"),
    ],
    ids=["tensor", "no source", "default", "object"],
)
def test_what_cannot_be_copied_runs_here_and_says_so_there(reference, reason):
    op = opforge.inline("here_only(Tensor x) -> Tensor y", reference)
    assert op(torch.zeros(3)).shape == (3,)
    text = (op.folder / "op.py").read_text()
    assert "cannot be made here" in text
    assert reason in text


def test_elsewhere_it_is_refused_with_the_reason(tmp_path):
    op = opforge.inline("here_only(Tensor x) -> Tensor y", add_table)
    shutil.copytree(op.folder, tmp_path / "copy")
    with pytest.raises(RecordError, match="cannot be made here: TABLE is a Tensor"):
        opforge.load(tmp_path / "copy")


def test_such_an_op_is_made_again_where_its_functions_are_others():
    same = [opforge.inline("held(Tensor x) -> Tensor y", adding) for adding in [add_table] * 2]
    assert same[0] is same[1]
    first = opforge.inline("held(Tensor x) -> Tensor y", lambda x: x + TABLE)
    second = opforge.inline("held(Tensor x) -> Tensor y", lambda x: x + TABLE * 2)
    assert (first(torch.zeros(1))[0], second(torch.zeros(1))[0]) == (1, 2)


def add_table(x):
    return x + TABLE
