# SPDX-License-Identifier: Apache-2.0
"""Ops as small as the README's: without cases, and called by the names of their arguments."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import load_record, write_op

from opforge import Make, discover
from opforge.errors import RecordError

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def softcap(tmp_path):
    """The smallest op, word for word."""
    (text,) = re.findall(r"# my_op/op\.py\n(.*?)```", README.read_text(), re.DOTALL)
    return discover.load(write_op(tmp_path / "my_op", op_py=text, cpp=None))


# --- cases ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ["check", "--only", "own-cases"],
        pytest.param(["bench", "--shapes", "8x8"], marks=pytest.mark.nightly),
    ],
)
def test_the_readmes_smallest_op_is_checked_and_timed_as_it_stands(softcap, command):
    name, *options = command
    done = subprocess.run(
        [sys.executable, "-m", "opforge", name, str(softcap.folder), *options],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "softcap: 1 passed" in done.stdout or "softcap forward, float32" in done.stdout


def shapes(op: object) -> list[tuple]:
    cases = op.iter_cases(Make())  # type: ignore[attr-defined]
    return [tuple(tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in c) for c in cases]


def test_tensors_have_several_ranks_and_numbers_are_sensible(softcap):
    assert shapes(softcap) == [
        ((33,), 0.5),
        ((5, 33), 0.5),
        ((64, 128), 0.5),
        ((3, 5, 16), 0.5),
        ((2, 3, 7, 8), 0.5),
    ]
    for dtype in (torch.float64, torch.bfloat16):
        made = list(softcap.iter_cases(Make(dtype, requires_grad=True)))
        assert [a.dtype for a, _ in made] == [dtype] * 5
        assert made[0][0].requires_grad


def test_what_is_optional_is_there_and_is_not(tmp_path):
    op = load_record(
        tmp_path,
        """
        op = Op(
            schema="shifted(Tensor x, Tensor? bias, bool negate) -> Tensor y",
            reference=lambda x, bias, negate: (-x if negate else x) + (0 if bias is None else bias),
        )
        """,
    )
    assert {case for case in shapes(op) if case[0] == (5, 33)} == {
        ((5, 33), bias, negate) for bias in ((5, 33), None) for negate in (False, True)
    }


def test_cases_that_the_reference_refuses_are_left_out(tmp_path):
    op = load_record(
        tmp_path,
        """
        def validate(x, weight, label, dim):
            if dim != 0:
                raise ValueError("dim must be 0")

        op = Op(
            schema="rows(Tensor x, Tensor weight, Tensor label, int dim) -> Tensor y",
            reference=lambda x, weight, label, dim: (
                torch.nn.functional.linear(x, weight).gather(1, label[:, None])
            ),
            own_dtypes={"label": (torch.int64,)},
            validate=validate,
        )
        """,
    )
    # A weight of the shape of x, and a label of 0 or 1 for each row.
    assert shapes(op) == [((5, 33), (5, 33), (5,), 0), ((64, 128), (64, 128), (64,), 0)]
    (_, _, label, _), *_ = op.iter_cases(Make())
    assert label.dtype == torch.int64
    assert set(label.tolist()) == {0, 1}


def test_where_all_are_refused_cases_are_asked_for(tmp_path):
    op = load_record(
        tmp_path,
        """
        def reference(x):
            raise ValueError("x must have 1000 rows")

        op = Op(schema="picky(Tensor x) -> Tensor y", reference=reference)
        """,
    )
    with pytest.raises(RecordError, match=re.escape(
        "the record of picky has no cases, and its reference accepts none of those derived from "
        "the schema (the last: ValueError: x must have 1000 rows); give the record cases=<a gener"
    )):  # fmt: skip
        list(op.iter_cases(Make()))


# --- arguments by name ----------------------------------------------------------------------------


def test_arguments_can_be_given_by_name(softcap):
    x = torch.randn(3)
    right = 3.0 * torch.tanh(x / 3.0)
    assert torch.equal(softcap(x, cap=3.0), right)
    assert torch.equal(softcap(cap=3.0, x=x), right)
    compiled = torch.compile(lambda x: softcap(x, cap=3.0), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), right)
    leaf = x.clone().requires_grad_()
    softcap(leaf, cap=3.0).sum().backward()
    torch.testing.assert_close(leaf.grad, 1 - torch.tanh(x / 3.0) ** 2)


@pytest.mark.parametrize(
    ("args", "named", "said"),
    [
        (1, {"capp": 3.0}, "softcap() got an unexpected keyword argument 'capp'; "
                           "it takes x, cap; did you mean 'cap'?"),
        (1, {"x": 1, "cap": 3.0}, "softcap() got multiple values for argument 'x'"),
        (0, {"cap": 3.0}, "softcap() missing 1 required argument: 'x'"),
        (1, {}, "softcap takes 2 arguments (x, cap), got 1; missing: cap"),
        (2, {"cap": 1.0}, "softcap() got multiple values for argument 'cap'"),
    ],
)  # fmt: skip
def test_names_that_do_not_fit_are_named(softcap, args, named, said):
    given = (torch.randn(3), 1.0)[:args]
    with pytest.raises(TypeError, match=f"^{re.escape(f'opforge.{said}')}$"):
        softcap(*given, **named)
