# SPDX-License-Identifier: Apache-2.0
"""The examples in docs/inline.md run as they stand."""

from __future__ import annotations

import linecache
import re
from pathlib import Path

import pytest
import torch

PAGE = (Path(__file__).parents[2] / "docs" / "inline.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "jit",
    [pytest.param("1", marks=pytest.mark.nightly, id="kernels"), pytest.param("0", id="formulas")],
)
@pytest.mark.filterwarnings("ignore:.*PyTorch reference")
def test_the_examples_run(tmp_path, monkeypatch, jit):
    monkeypatch.setenv("OPFORGE_JIT", jit)
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    script = tmp_path / "examples.py"
    script.write_text(code, encoding="utf-8")
    linecache.checkcache(str(script))
    names: dict[str, object] = {"__name__": "examples"}
    exec(compile(code, str(script), "exec"), names)
    assert names["softcap"](torch.zeros(2), 1.0).tolist() == [0, 0]  # type: ignore[operator]
    assert names["report"].failed == []  # type: ignore[attr-defined]
    assert {r.implementation for r in names["times"].rows} == {"opforge", "eager"}  # type: ignore[attr-defined]
    x = torch.ones(2, requires_grad=True)
    names["square"](x).sum().backward()  # type: ignore[operator]
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2]
    (tmp_path / "my_op" / "op.py").write_text(
        (tmp_path / "my_op" / "op.py").read_text().replace("torch.exp", "torch.sin")
    )
    assert names["my_op"](torch.zeros(1)).tolist() == [0]  # type: ignore[operator]
