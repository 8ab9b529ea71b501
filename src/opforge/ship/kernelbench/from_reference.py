# SPDX-License-Identifier: Apache-2.0
"""A problem made of an op: its ``Model`` is the op's reference, traced into torch's own ops."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from opforge.op import Op, as_tuple
from opforge.ship.kernelbench.problem import ProblemError
from opforge.ship.kernelbench.values import drawn, literal, sample


def problem_of(op: Op) -> tuple[str, str]:
    """The text of a problem, and the call of the op that answers it."""
    args = sample(op)
    tensors = {
        argument.name: value
        for argument, value in zip(op.forward.args, args, strict=True)
        if isinstance(value, torch.Tensor)
    }
    code = _traced(op, args, list(tensors))
    inputs = ", ".join(drawn(t) for t in tensors.values())
    given = ", ".join(
        a.name if a.name in tensors else literal(value)
        for a, value in zip(op.forward.args, args, strict=True)
    )
    names = [name for name in ("inf", "nan") if re.search(rf"\b{name}\b", code)]  # as traced
    text = (
        f"import torch\nfrom torch import {', '.join([*names, 'nn'])}\n\n\n"
        f'class Model(nn.Module):\n    """{op.name} in plain PyTorch."""\n\n{code}\n\n'
        f"def get_inputs():\n    return [{inputs}]\n\n\n"
        "def get_init_inputs():\n    return []\n"
    )
    return text, f"{op.name}({given})" + ("[0]" if len(op.outputs) > 1 else "")


def _traced(op: Op, args: tuple[Any, ...], names: list[str]) -> str:
    """The method ``forward`` of the reference, which returns the op's first output."""
    slots = [i for i, value in enumerate(args) if isinstance(value, torch.Tensor)]
    reference = op.reference
    assert reference is not None

    def run(*tensors: torch.Tensor) -> Any:
        full = list(args)
        for slot, tensor in zip(slots, tensors, strict=True):
            full[slot] = tensor
        return as_tuple(reference(*full))[0]

    traced = make_fx(run, tracing_mode="fake")(*(args[slot] for slot in slots))
    for node, name in zip(traced.graph.find_nodes(op="placeholder"), names, strict=True):
        node._rename(f"input_{name}")
        node.target = f"input_{name}"
    traced.graph.eliminate_dead_code()
    traced.recompile()
    code = re.sub(r";  [\w =]+ = None$", "", traced.code.strip(), flags=re.MULTILINE)
    for name in names:  # renamed last: an op in the graph may be called like an argument
        code = re.sub(rf"\binput_{name}\b", name, code)
    code = code.replace("device(type='cpu')", f"{names[0]}.device")
    if "self." in code:
        raise ProblemError(
            f"the reference of {op.name} holds a tensor of its own, so it is no Model; "
            "give one with --model"
        )
    return "".join(f"    {line}\n" for line in code.splitlines())
