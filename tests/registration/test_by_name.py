# SPDX-License-Identifier: Apache-2.0
"""The functions of a record get the arguments that their parameters name."""

from __future__ import annotations

import builtins
import functools
import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

from opforge import discover
from opforge.errors import RecordError
from opforge.op import Op
from opforge.registration import schema
from opforge.registration.by_name import by_name

SCHEMA = schema.parse("three(Tensor x, Tensor? weight, float eps) -> Tensor y")


def keyword_only(*, eps: Any, x: Any) -> Any:
    return x, eps


def all_of(x: Any, **rest: Any) -> Any:
    return x, rest


def operation(op: str, weight: Any, x: Any) -> Any:
    return op, weight, x


@pytest.mark.parametrize(
    ("function", "right"),
    [
        (lambda: "nothing", "nothing"),
        (lambda eps: eps, 3),
        (lambda eps, x: (eps, x), (3, 1)),
        (lambda x, weight, eps: (x, weight, eps), (1, 2, 3)),
        (lambda x, factor=4: (x, factor), (1, 4)),
        (lambda x, eps=4: (x, eps), (1, 3)),
        (lambda **all_of_them: all_of_them, {"x": 1, "weight": 2, "eps": 3}),
        (all_of, (1, {"weight": 2, "eps": 3})),
        (keyword_only, (1, 3)),
        (functools.partial(operation, "three"), ("three", 2, 1)),
        (functools.partial(operation, op="three"), ("three", 2, 1)),
    ],
)
def test_a_function_gets_what_it_asks_for(function: Callable[..., Any], right: Any) -> None:
    assert by_name(function, SCHEMA, "operations")(1, 2, 3) == right


def test_names_that_python_does_not_allow_can_be_had_with_all_others() -> None:
    odd = schema.parse("odd(Tensor x, float lambda) -> Tensor y")
    assert by_name(lambda **given: given, odd, "bytes")(1, 2) == {"x": 1, "lambda": 2}
    assert by_name(lambda x: x, odd, "bytes")(1, 2) == 1


ALL = "it may ask for x, weight, eps"
UNNAMED = f"which cannot be passed by name; {ALL}, or for all of them as **kwargs"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            lambda wieght: 0,
            f"asks for 'wieght', which is not an argument of the schema; {ALL}; did",
        ),
        (lambda x, rows: 0, f"asks for 'rows', which is not an argument of the schema; {ALL}"),
        (lambda x, *rest: 0, f"has the parameter '*rest', {UNNAMED}"),
        (lambda x, /: 0, f"has the parameter 'x', {UNNAMED}"),
        (torch.numel, "whose parameters have no names that Python can see; put a lambda around it"),
        (4, "must be a function, got 4"),
    ],
)
@pytest.mark.parametrize("field", ["validate", "operations", "bytes", "product", "module"])
def test_what_cannot_be_given_is_refused_with_the_record(
    field: str, function: Any, said: str
) -> None:
    with pytest.raises(RecordError, match=f"the record of three: {field} .*{re.escape(said)}"):
        Op(schema=SCHEMA.text, reference=lambda x, weight, eps: x, **{field: function})


def test_statistics_are_named_where_they_ask_for_too_much() -> None:
    from opforge.op import Backward

    said = "the record of counted: statistics['size'] asks for 'y', which is not an argument"
    with pytest.raises(RecordError, match=re.escape(said)):
        Op(
            schema="counted(Tensor x) -> (Tensor y, Tensor size)",
            reference=lambda x: x,
            statistics={"size": lambda y: y},
            backward=Backward("counted_backward(Tensor grad_y) -> Tensor grad_x", lambda grad_y: 0),
        )


def test_a_peer_is_looked_at_when_it_is_there() -> None:
    op = Op(
        schema=SCHEMA.text,
        reference=lambda x, weight, eps: x,
        peers={"good": lambda: lambda eps, x: (eps, x), "bad": lambda: lambda q: q},
    )
    assert op.peers["good"]()(1, 2, 3) == (3, 1)
    said = f"what peers['bad'] returns asks for 'q', which is not an argument of the schema; {ALL}"
    with pytest.raises(RecordError, match=re.escape(said)):
        op.peers["bad"]()


def test_every_peer_of_a_built_in_op_asks_for_arguments_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is installed: a peer that is not is replaced by a mock."""
    real = builtins.__import__

    def pretend(name: str, *rest: Any) -> Any:
        foreign = name.partition(".")[0] in ("liger_kernel", "quack")
        return mock.MagicMock() if foreign else real(name, *rest)

    found = [(op, name) for op in map(discover.find, discover.builtin_names()) for name in op.peers]
    assert len(found) > 10
    monkeypatch.setattr(builtins, "__import__", pretend)
    for op, name in found:
        assert callable(op.peers[name]())
