# SPDX-License-Identifier: Apache-2.0
"""What is no formula: an error at the user's line that says what to change, and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from opforge.errors import NewError
from opforge.formula.make import make

HEAD = """\
import torch
from torch import Tensor

WEIGHT = torch.ones(3)
LAYER = torch.nn.Linear(3, 3)
"""
# name: (the function, its line from 1, words of the message)
WRONG = {
    "changes": ("def f(x: Tensor):\n    x += 1\n    return x * 2", 2, "changes an argument"),
    "values": ("def f(x: Tensor):\n    if x.sum() > 0:\n        return x\n    return -x", 2,
               "torch.where"),
    "item": ("def f(x: Tensor):\n    return x * x.max().item()", 2, ".item()"),
    "prints": ("def f(x: Tensor):\n    print(x)\n    return x * 2", 2, "calls print()"),
    "outside": ("def f(x: Tensor):\n    return x * WEIGHT", 2, "uses WEIGHT, a tensor"),
    "module": ("def f(x: Tensor):\n    return LAYER(x)", 2, "uses LAYER, a module"),
    "returns": ("def f(x: Tensor):\n    return {'y': x * 2}", 2, "returns a dict"),
    "nothing": ("def f(x: Tensor):\n    x * 2", 1, "returns a NoneType"),
    "itself": ("def f(x: Tensor):\n    return x", 2, "returns its argument x"),
    "view": ("def f(x: Tensor):\n    return x.t()", 2, "returns its argument x, or a view"),
    "twice": ("def f(x: Tensor):\n    y = x * 2\n    return y, y", 3, "one tensor twice"),
    "mask": ("def f(x: Tensor):\n    return x > 0", 2, "torch.bool"),
    "no tensor": ("def f(a: float):\n    return a * 2", 1, "takes no tensor"),
    "list": ("def f(x: list):\n    return x[0]", 1, "is a list"),
    "any number": ("def f(*x):\n    return x[0] * 2", 1, "*x"),
    "raises": ("def f(x: Tensor):\n    return x.no_such_method()", 2, "AttributeError"),
    "word": ("def f(exp: Tensor):\n    return exp * 2", 1, "rename the parameter"),
    "keyword": ("def f(new: Tensor):\n    return new * 2", 1, "keyword"),
    "capital": ("def f(X: Tensor):\n    return X * 2", 1, "lower-case"),
    "a size": ("def f(x: Tensor):\n    return x * (2 if x.shape[0] > 100 else 3)", 1,
               "depends on the size"),
    "an int": ("def f(x: Tensor, n: int):\n    return x ** n", 1, "give its value"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_it_is_refused_at_the_line_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    text, line, words = WRONG[name]
    file = tmp_path / "mine.py"
    file.write_text(HEAD + text + "\n")
    line += HEAD.count("\n")
    with pytest.raises(NewError) as refused:
        make("my_op", f"{file}:f", None, None, tmp_path / "ops", False)
    message = str(refused.value)
    assert f"mine.py:{line}: " in message
    assert words in message
    assert not (tmp_path / "ops").exists()


@pytest.mark.parametrize(
    ("where", "shapes", "words"),
    [
        ("mine.py", None, "FILE:FUNCTION"),
        ("none.py:f", None, "there is no file"),
        ("mine.py:g", None, "has no function g"),
        ("mine.py:f", "z: 4x4", "no parameter 'z'"),
        ("mine.py:f", "x", "is not NAME: SIZES"),
        ("mine.py:f", "x: 4by4", "neither sizes"),
        ("mine.py:f", "x: 4x4 int32", "int32 is not supported"),
        ("mine.py:f", "x: 4x8, w: 5", "size 5 of w"),
    ],
)
def test_a_bad_command_line_is_explained(
    where: str, shapes: str | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(HEAD + "def f(x: Tensor, w: Tensor):\n    return x * w\n")
    with pytest.raises(NewError, match=words.replace("(", r"\(")):
        make("my_op", where, shapes, None, tmp_path / "ops", False)
    assert not (tmp_path / "ops").exists()


def test_a_file_that_does_not_run_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 1\ny = 1 / 0\n")
    with pytest.raises(NewError, match=r"mine.py:2: ZeroDivisionError"):
        make("my_op", f"{tmp_path}/mine.py:f", None, None, tmp_path, False)
