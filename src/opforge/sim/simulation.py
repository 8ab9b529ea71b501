# SPDX-License-Identifier: Apache-2.0
"""``opforge.sim.active`` and ``run``: redirects calls of ops to their simulated kernels."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from opforge import discover, settings
from opforge.build import origins
from opforge.build.targets import SIM, has_kernels, modes
from opforge.errors import RecordError, SimulationError
from opforge.op import Op, as_tuple
from opforge.registration.register import BELOW
from opforge.sim import runtime
from opforge.sim.runtime import A100 as A100
from opforge.sim.runtime import H200, Device, Traffic

Mode = Literal["plain", "race", "asan", "cover"]
TARGETS = modes(SIM.kind)
_FOUND = "opforge simulator found"  # messages of the runtime start with this
WARNING = "opforge simulator: "
_one_at_a_time = threading.RLock()
_active = threading.local()


@dataclass(frozen=True)
class Call:
    """One call of a simulated op, with the memory traffic of its kernels."""

    function: str
    shapes: str
    model_bytes: int  # bytes that it must move, from the record's cost()
    launches: list[Traffic]

    @property
    def moved_bytes(self) -> int:
        """Bytes of the distinct sectors of all launches."""
        return sum(t.distinct_read + t.distinct_written for t in self.launches)


class Route(TorchDispatchMode):
    """A mode that redirects opforge ops on CPU tensors to their simulated kernels."""

    is_route = True  # ops take the same call paths as without it

    def __init__(self, target: str, device: Device, **options: int) -> None:
        super().__init__()
        self.target, self.device, self.options = target, device, options
        self.calls: list[Call] = []
        self.routed = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        op = self._op_of(func) if all(map(_is_ordinary, args)) else None
        if op is None:
            return func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        if composed := op._composed.get(name):
            with (
                self
            ):  # torch disables the mode in here, but the ops inside must be simulated as well
                return composed(*args)
        namespace = runtime.ensure(op, self.target)
        kernel = getattr(getattr(getattr(torch.ops, namespace), name), BELOW)
        self.routed += 1
        return self.run(op, name, kernel, args)

    def run(self, op: Op, name: str, kernel: Any, args: tuple[Any, ...]) -> Any:
        """Call the simulated kernel of one of the op's functions."""
        # The runtime has one set of settings per process, but threads and contexts differ.
        with _one_at_a_time:
            runtime.configure(self.device, **self.options)
            try:
                result = kernel(*args)
            except RuntimeError as error:
                if str(error).startswith(_FOUND):
                    found = str(error)
                    if op.folder is not None:
                        found = origins.translate(found, op.folder)
                    raise SimulationError(found) from None
                raise
            if self.options["traffic"]:
                self._note(op, name, args, as_tuple(result))
        return result

    def _note(self, op: Op, function: str, args: tuple[Any, ...], results: tuple[Any, ...]) -> None:
        inputs = [a for a in args if isinstance(a, torch.Tensor)]
        shapes = ", ".join("x".join(map(str, t.shape)) or "scalar" for t in inputs)
        if function == op.name:
            model = op.cost(*args).bytes
        else:  # records have no cost for a backward op
            model = sum(t.numel() * t.element_size() for t in (*inputs, *results))
        self.calls.append(Call(function, f"({shapes})", model, runtime.take_traffic()))

    def _op_of(self, func: Any) -> Op | None:
        name = func._schema.name.split("::")[1]
        for loaded in discover.loaded():
            op = loaded.op
            mine = op.namespace == func.namespace and name in (s.name for s in op.functions)
            if mine and has_kernels(op, self.target):
                return op
        return None


@contextlib.contextmanager
def active(
    mode: Mode = "plain",
    *,
    seed: int | None = None,
    device: Device = H200,
    traffic: bool = False,
    placement: bool = False,
) -> Iterator[list[Call]]:
    """A context in which public functions run CPU tensors in the simulated CUDA kernels.

    This applies to forwards and backwards that run inside. Code under ``torch.compile`` may not be
    simulated.

    Args:
        mode: ``"race"`` also finds data races, reads of uninitialized memory, misaligned accesses
            and integer overflow. ``"asan"`` finds out-of-bounds accesses, in a process started with
            AddressSanitizer, as by ``opforge sim --asan``. ``"cover"`` records for
            :mod:`opforge.truth.coverage` which code ran.
        seed: shuffles the order of threads and blocks. Without a seed they run in order.
        device: the GPU to simulate.
        traffic: count the memory traffic. The context returns a list that gets a :class:`Call` for
            each call. It needs ``mode="race"``, and does not look for races.
        placement: simulate tensors on a GPU that is not the current one, with a current stream that
            is not the default stream. It finds launches without a ``DeviceGuard``, launches on
            another stream than ``current_stream(x)``, and calls that wait for the GPU.

    Raises :class:`SimulationError` if a fault is found. Suspicious behaviour gives a warning.
    """
    if mode not in TARGETS:
        raise ValueError(f"mode={mode!r} must be one of {', '.join(map(repr, TARGETS))}")
    if mode == "asan" and not runtime.under_asan():
        raise RuntimeError(
            "mode='asan' needs AddressSanitizer loaded before Python; use `opforge sim OP --asan`"
        )
    if traffic and mode != "race":
        raise ValueError("traffic=True needs mode='race', whose kernels report every access")
    if seed is not None and not (isinstance(seed, int) and 0 <= seed < 2**62):
        raise ValueError(f"seed={seed} must be a whole number from 0 to 2**62 - 1")
    if not isinstance(device, Device):
        raise TypeError(f"device must be an opforge.sim.Device, got {device!r}")
    route = Route(
        TARGETS[mode].name,
        device,
        seed=-1 if seed is None else seed,
        race=int(mode == "race" and not traffic),
        traffic=int(traffic),
        placement=int(placement),
        timeout=settings.sim_timeout(),
    )
    _active.routes = (*_routes(), route)
    try:
        with route:
            yield route.calls
    finally:
        _active.routes = _routes()[:-1]
        for text in runtime.take_warnings() if runtime.is_loaded() else []:
            warnings.warn(WARNING + text, stacklevel=3)


def current() -> Route | None:
    """The innermost simulation that is active on this thread, or None."""
    return _routes()[-1] if _routes() else None


def _routes() -> tuple[Route, ...]:
    return getattr(_active, "routes", ())


def run(op: str | Path | Op | Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call an op on CPU tensors in its simulated CUDA kernels.

    Args:
        op: a built-in op's name or function, an op folder, or an :class:`opforge.Op`.
        args: the arguments of the op.
        options: as for :func:`active`.
    """
    record = discover.record_of(op)
    if not has_kernels(record, SIM.name):
        raise RecordError(f"{record.name} has no CUDA source (*.cu) in {record.folder}")
    function = op if callable(op) else discover.function_of(record)
    with active(**options):
        result = function(*args)
        route = current()
        if route is not None and route.routed == 0:
            raise ValueError(f"{record.name} was not simulated: it takes plain tensors on the CPU")
    return result


def _is_ordinary(value: Any) -> bool:
    """Whether a simulated kernel supports this argument: a CPU tensor with memory, or no tensor."""
    if not isinstance(value, torch.Tensor):
        return True
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.device.type == "cpu"
