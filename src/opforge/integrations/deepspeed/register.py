# SPDX-License-Identifier: Apache-2.0
"""``register(*ops)``: makes builders known where DeepSpeed looks for its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from opforge import discover
from opforge.errors import RecordError
from opforge.integrations.deepspeed.builder import builder
from opforge.op import Op

_ours: dict[str, Any] = {}  # class name -> class


def register(*ops: str | Path | Op | Callable[..., Any]) -> list[Any]:
    """Register the builders of ops with DeepSpeed, in this process; returns their classes.

    The accelerator then finds them by their class names, and ``ds_report`` by their names, see
    :mod:`opforge.integrations.deepspeed.__main__`. An op that is registered again is replaced.
    """
    made = [builder(op) for op in ops]
    from deepspeed import ops as namespace
    from deepspeed.accelerator import get_accelerator
    from deepspeed.ops import op_builder
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    accelerator = get_accelerator()
    for one in made:  # all of them, or none
        _check_free(one, accelerator, ALL_OPS)
    _teach(accelerator)
    for one in made:
        _ours[one.__name__] = one
        ALL_OPS[one.NAME] = one()
        setattr(op_builder, one.__name__, one)
        # Probed once, when it is first asked for.
        if (probed := vars(namespace).get("__compatible_ops__")) is not None:
            probed[one.NAME] = one().is_compatible()
    return made


def _check_free(one: Any, accelerator: Any, known: dict[str, Any]) -> None:
    """Refuse a name that DeepSpeed or another op has."""
    if other := _ours.get(one.__name__):
        if (other.OP.folder, other.NAME) != (one.OP.folder, one.NAME):
            raise RecordError(
                f"{discover.where(one.OP)} cannot be registered with DeepSpeed: "
                f"{other.__name__} is that of {discover.where(other.OP)}; rename one of the ops"
            )
        return
    theirs = accelerator.get_op_builder(one.__name__)
    # The CPU accelerator answers with this for every name that it does not know.
    if one.NAME in known or getattr(theirs, "__name__", "NotImplementedBuilder") == one.__name__:
        raise RecordError(
            f"{discover.where(one.OP)} cannot be registered with DeepSpeed, which has a builder "
            f"{one.NAME} or {one.__name__} of its own; rename the op"
        )


def _teach(accelerator: Any) -> None:
    """Have an accelerator find our builders, too. It has no other place to add one."""
    if "get_op_builder" in vars(accelerator):
        return
    get, create = accelerator.get_op_builder, accelerator.create_op_builder

    def get_op_builder(class_name: str) -> Any:
        return _ours.get(class_name) or get(class_name)

    def create_op_builder(class_name: str) -> Any:
        found = _ours.get(class_name)
        return found() if found else create(class_name)

    accelerator.get_op_builder = get_op_builder
    accelerator.create_op_builder = create_op_builder
