# SPDX-License-Identifier: Apache-2.0
"""The layer of an op that has none of its own: its public function as ``forward``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any

from torch import nn

from opforge.op import Op


def layer(name: str, function: Callable[..., Any]) -> type[nn.Module]:
    """A layer without state. ``kernelize`` puts it in place of a function with this signature."""

    def forward(self: nn.Module, *args: Any, **named: Any) -> Any:
        return function(*args, **named)

    parameters = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *_parameters(function)]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    members = {"forward": forward, "has_backward": True, "can_torch_compile": True}
    return type(name, (nn.Module,), {**members, "__doc__": function.__doc__})


def _parameters(function: Callable[..., Any]) -> list[Parameter]:
    if isinstance(function, Op):  # without a public function, calls take the schema's arguments
        names = [argument.name for argument in function.forward.args]
        return [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    return list(inspect.signature(function).parameters.values())
