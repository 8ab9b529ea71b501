# SPDX-License-Identifier: Apache-2.0
"""``opforge.fuse``: the op of a formula at run time, for scripts and notebooks.

The first call with tensors of some shapes writes the op's folder into the cache and loads it. The
sizes do not matter, only which of them are the same.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import keyword
import re
from collections.abc import Callable
from typing import Any

from opforge import discover
from opforge.build import cache
from opforge.formula import example, source
from opforge.formula.source import FormulaError, Source
from opforge.formula.write import folder
from opforge.new.folder import write_files
from opforge.op import Op


class Fused:
    """A function that runs as an op with kernels."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._source: Source = source.of_function(function)
        self._signature = inspect.signature(function)
        self._ops: dict[tuple[Any, ...], tuple[Op, list[str]]] = {}
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the op for these arguments; the first call for their kind writes it."""
        bound = self._signature.bind(*args, **named)
        bound.apply_defaults()
        given = example.of_call(self._source, bound.arguments)
        key = (*given.dims.items(), *given.fixed.items(), *given.numbers)
        if key not in self._ops:
            self._ops[key] = self._make(given)
        op, names = self._ops[key]
        return op(*(bound.arguments[n] for n in names))

    def _make(self, given: example.Example) -> tuple[Op, list[str]]:
        name = re.sub(r"\W+", "_", self._source.name.lower()).strip("_")
        if keyword.iskeyword(name) or not name:  # of a lambda
            name = "formula"
        if name in discover.builtin_names():
            name = f"fused_{name}"
        written = folder.write(name, self._source, given, into=cache.inline_root())
        for what, reason in written.unmapped:
            if what == "the formula":
                raise FormulaError(
                    f"{self._source.error(reason.reason, reason.line)}; no kernel is written for "
                    "that, so call the function itself"
                )
        content = "".join(f"{k}\0{v}\0" for k, v in sorted(written.files.items()))
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        place = cache.inline_root() / f"{name}-{digest}"
        files = dict(written.files)
        files["op.py"] = files["op.py"].replace(
            "\nop = Op(\n", f'\nop = Op(\n    namespace="opforge_fused_{digest[:8]}",\n', 1
        )
        if not (place / "op.py").is_file():
            write_files(place, files, force=True)
        op = discover.find(str(place))
        return op, [a.name for a in op.forward.args]


def fuse(function: Callable[..., Any]) -> Fused:
    """Make an op with kernels of a function in plain PyTorch, when it is first called.

    ``softcap = opforge.fuse(lambda x, cap: cap * torch.tanh(x / cap))``, or as a decorator.
    """
    return Fused(function)
