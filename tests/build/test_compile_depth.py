# SPDX-License-Identifier: Apache-2.0
"""torch.compile of a deep model: Inductor knows the ops beforehand, and takes time by the layer.

The log line that it writes for an op that it does not know holds the texts of all arguments, and
theirs. torch up to 2.11 makes that text always, later ones where the log is read, as here.
"""

from __future__ import annotations

import json
import textwrap
from typing import Any

import pytest
from helpers import python

DEEP = """
    import json, logging, sys, time, torch, opforge

    assert "torch._inductor" not in sys.modules, "importing opforge imported Inductor"
    torch.set_default_dtype(torch.float64)
    angles = torch.randn(8, 4)

    def model(x, weight, layers, last):
        residual = torch.zeros_like(x)
        for _ in range(layers):
            x, residual = opforge.rms_norm(x, weight, residual)
            heads = x.unflatten(-1, (2, 8))
            q, k = opforge.rope(heads, heads, angles.cos(), angles.sin())
            x = opforge.swiglu(q.flatten(-2), k.flatten(-2))
        return last(x, residual)

    def leaves():
        torch.manual_seed(0)
        return [torch.randn(shape, requires_grad=True) for shape in ((8, 16), (16,))]
"""


def run(code: str) -> Any:
    """What the code prints as JSON. Caches are off: a graph that is found there is not lowered."""
    program = textwrap.dedent(DEEP) + textwrap.dedent(code)
    off = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
    done = python(program, environment=off)
    return json.loads(done.stdout)


@pytest.mark.nightly
def test_inductor_is_told_of_the_ops_before_it_lowers_them():
    code = """
        import torch._inductor.exc as exc

        asked = []
        exc.OperatorIssue.operator_str = staticmethod(lambda op, *rest: asked.append(str(op)) or "")
        torch._logging.set_logs(inductor=logging.INFO)
        results = []
        for run in (model, torch.compile(model, fullgraph=True)):
            x, weight = leaves()
            y = run(x, weight, 2, opforge.vector_add)
            y.square().sum().backward()
            results.append((y, x.grad, weight.grad))
        torch.testing.assert_close(*results)
        print(json.dumps(asked))
    """
    assert run(code) == []


@pytest.mark.nightly
def test_the_time_to_compile_is_linear_in_the_depth():
    # The last op is one that Inductor has not met: after so many others its log line is long.
    code = """
        @torch.no_grad()
        def seconds(layers, last):
            torch._dynamo.reset()
            x, weight = leaves()
            started = time.perf_counter()
            torch.compile(model, fullgraph=True)(x, weight, layers, last)
            return time.perf_counter() - started

        torch._logging.set_logs(inductor=logging.INFO)
        seconds(1, opforge.swiglu)
        ends = {4: opforge.geglu, 8: opforge.reglu, 16: opforge.vector_add}
        print(json.dumps([seconds(*end) for end in ends.items()]))
    """
    four, eight, sixteen = run(code)
    # Four times the layers; the rest is room for a busy machine. Twice the time for each layer
    # would be a factor of thousands.
    assert sixteen < 8 * four, (four, eight, sixteen)
