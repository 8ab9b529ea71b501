# SPDX-License-Identifier: Apache-2.0
"""A request to profile an op at a shape and dtype, and the calls that it makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from opforge import discover
from opforge.bench import shapes
from opforge.bench.inputs import DeviceMake
from opforge.bench.runner import dtype_of
from opforge.build.load import find_prebuilt
from opforge.build.targets import CUDA, has_sources
from opforge.discover import where
from opforge.errors import OpforgeError, ProfileError
from opforge.op import Op, as_tuple
from opforge.registration.arguments import check_arguments
from opforge.truth.cases import as_leaves, differentiable

_WARM_UP = 3  # calls; the first one loads the kernel, and all fill torch's memory pool


@dataclass(frozen=True)
class Request:
    """One op at one shape and dtype, forward only or with the backward."""

    op: Op
    shape: tuple[int, ...]
    dtype: torch.dtype
    backward: bool = False

    @property
    def words(self) -> list[str]:
        """The request as command-line arguments of the child process."""
        shape = "x".join(map(str, self.shape))
        words = [where(self.op), shape, str(self.dtype).removeprefix("torch.")]
        return [*words, "--backward"] if self.backward else words

    @property
    def title(self) -> str:
        """The request as a heading."""
        return f"{self.op.name} {self.words[1]} {self.words[2]}"


@dataclass(frozen=True)
class Run:
    """A call to profile: a variant of the op's arguments, forward or backward."""

    what: str
    model_bytes: int  # bytes it must move, from the record
    call: Callable[[], Any]


def resolve(name: str, shape: str, dtype: str | None, backward: bool) -> Request:
    """Make the request of a command line. Raises for invalid options."""
    op = discover.find(name)
    found = shapes.parse(shape)
    if len(found) != 1:
        raise ProfileError(f"--shape {shape} is {len(found)} shapes; profile one at a time")
    request = Request(op, found[0], _dtype(op, dtype), backward)
    _try_on_meta(request)
    return request


def check_has_kernels(op: Op) -> None:
    """Raise ProfileError for an op without CUDA code."""
    if not has_sources(op, CUDA.name) and find_prebuilt(op, CUDA.name) is None:
        raise ProfileError(
            f"{op.name} has no CUDA code (*.cu) in {op.folder}, so there are no kernels to "
            "profile; --timeline FILE shows what PyTorch runs for it"
        )


def runs(request: Request, device: str) -> list[Run]:
    """The calls of a request on a device, warmed up: for each variant forward, then backward."""
    op = request.op
    found = []
    for variant, case in shapes.arguments(
        op, DeviceMake(request.dtype, device), request.shape
    ).items():
        suffix = f" ({variant})" if variant else ""
        found.append(Run(f"forward{suffix}", op.cost(*case).bytes, _forward(op, case)))
        if request.backward:
            model = op.backward_cost(*case).bytes
            found.append(Run(f"backward{suffix}", model, _backward(op, case)))
    for run in found:
        for _ in range(_WARM_UP):
            run.call()
    return found


def _forward(op: Op, case: tuple[Any, ...]) -> Callable[[], Any]:
    def call() -> Any:
        with torch.no_grad():
            return op(*case)

    return call


def _backward(op: Op, case: tuple[Any, ...]) -> Callable[[], Any]:
    """A function that runs only the backward. The graph is made once and kept."""
    leaves = as_leaves(case)
    outputs = [o for o in as_tuple(op(*leaves)) if o.requires_grad]
    if not outputs:
        raise ProfileError(f"{op.name} has no gradient to profile; leave --backward out")
    grads = [torch.randn_like(o) for o in outputs]
    wanted = differentiable(leaves)
    return lambda: torch.autograd.grad(outputs, wanted, grads, retain_graph=True, allow_unused=True)


def _dtype(op: Op, name: str | None) -> torch.dtype:
    if name is None:  # the dtype in which models are trained
        return torch.bfloat16 if torch.bfloat16 in op.dtypes else op.dtypes[0]
    return dtype_of(op, name)


def _try_on_meta(request: Request) -> None:
    """Raise for a shape that the op does not support, before a profiler is started."""
    op, text = request.op, request.words[1]
    try:
        make = DeviceMake(request.dtype, "meta")
        for case in shapes.arguments(op, make, request.shape).values():
            check_arguments(op, case)
            op.cost(*case)
    except OpforgeError:
        raise
    except NotImplementedError:
        pass  # the record reads values, which meta tensors lack; the real call checks
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise ProfileError(f"{op.name} does not take the shape {text}: {error}") from None
