# SPDX-License-Identifier: Apache-2.0
"""``builder(op)``: an op as a class like those of ``deepspeed.ops.op_builder``.

``load`` builds through opforge and its cache. The classic members describe the same sources, so
DeepSpeed's own ``jit_load`` works, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from opforge import discover, settings
from opforge.build import load, targets
from opforge.errors import KernelUnavailable, OpforgeError, RecordError
from opforge.op import Op
from opforge.ship.sources import Sources, kit
from opforge.terminal import extras, words


def builder(op: str | Path | Op | Callable[..., Any]) -> Any:
    """The ``OpBuilder`` class of an op, for the accelerator that DeepSpeed uses.

    Args:
        op: a built-in name, an op folder, a record or a public function.
    """
    extras.need("opforge.integrations.deepspeed", "deepspeed")
    from deepspeed.accelerator import get_accelerator

    record = discover.record_of(op)
    if record.folder is None:
        raise RecordError(f"{record.name} is not loaded; pass its folder, or opforge.load(it)")
    device = get_accelerator().device_name()
    members = {
        "__module__": __name__,
        "__doc__": f"Builds {record.name} with opforge.",
        "NAME": record.name,
        "BUILD_VAR": f"DS_BUILD_{record.name.upper()}",
        "OP": record,
        "DEVICE": device,
    }
    return type(class_name(record), (_Members, _base(device)), members)


def class_name(op: Op) -> str:
    """What DeepSpeed would call its builder: RmsNormBuilder."""
    return f"{words.camel(op.name)}Builder"


def _base(device: str) -> type:
    from deepspeed.ops.op_builder import builder as theirs

    # Of these, jit_load compiles .cu files.
    base: type = theirs.CUDAOpBuilder if device == "cuda" else theirs.OpBuilder
    return base


class _Members:
    """What every builder has; the rest comes from DeepSpeed's own class."""

    NAME: str
    OP: Op
    DEVICE: str
    error_log: str | None
    warning: Callable[[str], None]

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name=self.NAME if name is None else name)  # type: ignore[call-arg]

    def absolute_name(self) -> str:
        """The module's name where it is installed with DeepSpeed."""
        return f"deepspeed.ops.{self.NAME}.{self.NAME}_op"

    def sources(self) -> list[str]:
        """The op's sources and a generated one, which makes a Python module of them."""
        return [str(f) for f in self._in_place().files]

    def include_paths(self) -> list[str]:
        """The folders of headers: of the op, of opforge, and of what is generated."""
        return [str(f) for f in self._in_place().folders]

    def cxx_args(self) -> list[str]:
        """Flags for the C++ compiler."""
        return list(self._in_place().cxx)

    def nvcc_args(self) -> list[str]:
        """Flags for nvcc; none without a GPU."""
        return list(self._in_place().nvcc)

    def extra_ldflags(self) -> list[str]:
        """Flags for the linker."""
        return list(self._in_place().link)

    def is_compatible(self, verbose: bool = False) -> bool:
        """Whether ``load`` can work; if not, ``error_log`` has the reason."""
        reason = self.error_log = self._obstacle()
        if reason and verbose:
            self.warning(reason)
        return reason is None

    def load(self, verbose: bool = False) -> SimpleNamespace:
        """Build the op, or find it in the cache, and load it.

        Returns an object with the kernels as ``forward`` and ``backward`` and, under the op's name,
        the public function, which has gradients.
        """
        if reason := self._obstacle():
            raise KernelUnavailable(f"the builder of {self.NAME} cannot load it: {reason}")
        op, started = self.OP, time.monotonic()
        if op.composed is None:
            load.find(op, self.DEVICE)  # all parts at once, and an error where ensure() warns
            load.ensure(op, op.name, self.DEVICE)
        if verbose:
            print(f"opforge: {op.name} is ready after {time.monotonic() - started:.1f} s")
        kernels = getattr(torch.ops, op.namespace)
        backward = op.backward
        if not callable(backward):  # the record's own, or the derived one
            backward = getattr(kernels, op._gradient.name).default
        functions = {op.name: discover.function_of(op)}
        functions |= {"forward": getattr(kernels, op.name).default, "backward": backward}
        return SimpleNamespace(**functions)

    def _in_place(self) -> Sources:
        return kit(self.OP, self.DEVICE).in_place()

    def _obstacle(self) -> str | None:
        """Why it cannot be loaded."""
        if targets.for_device(self.DEVICE) is None:
            return f"opforge has kernels for cpu and cuda, and the accelerator is {self.DEVICE}"
        if self.OP.composed is not None:  # of others, which are built when they are called
            return None
        try:
            ready = load.find_ready(self.OP, self.DEVICE)
        except OpforgeError as error:
            return str(error)
        if ready is None and not settings.jit_enabled():
            return (
                f"it is not built, and OPFORGE_JIT=0 forbids compiling it; run "
                f"`{load.build_command(self.OP, self.DEVICE)}` or unset OPFORGE_JIT"
            )
        return None
