# SPDX-License-Identifier: Apache-2.0
"""Rows about the GPU's runtime: devices, streams, graphs, memory, architectures.

The simulator also looks for those faults that can be seen without a GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from opforge.build import load
from opforge.build.plan import stem
from opforge.check.row import Fault, NotApplicable, NotRun, Trial, row
from opforge.check.situation import Situation, TooLarge
from opforge.errors import KernelUnavailable, SimulationError
from opforge.op import as_tuple
from opforge.truth import cases, compare, inputs


def _simulate_placement(t: Trial, kinds: tuple[str, ...]) -> None:
    """Run all cases as if on another GPU and another stream; raise reports of these kinds."""
    for s in t.own(t.dtypes[0]):
        s.place = replace(t.place, placement=True)
        try:
            s.results(s.has_gradient())
        except SimulationError as error:
            if any(f"{kind}:" in str(error) for kind in kinds):
                raise


@row(
    23,
    "other-device",
    "s g",
    "A kernel launched without a device guard runs on the current GPU, not on the GPU of its "
    "tensors.",
    star=True,
)
def other_device(t: Trial) -> None:
    """Tensors are on the second GPU while the first is current, and the first stays current."""
    if t.place.simulated:
        _simulate_placement(t, ("device-guard",))
        return
    if torch.cuda.device_count() < 2:
        raise NotRun("needs two GPUs; this machine has one")
    s = t.largest()
    right = s.results()
    moved = s
    for name in s.tensors:
        moved = moved.change(name, inputs.to_device, "cuda:1")
    got = t.trying(moved).results()
    if torch.cuda.current_device() != 0:
        raise Fault(f"the op changed the current device from 0 to {torch.cuda.current_device()}")
    for a, b in zip(got, right, strict=True):
        compare.check_same_bits(a.cpu(), b.cpu(), "the result on cuda:1 differs bitwise")


@row(
    31,
    "side-stream",
    "s g",
    "The op must launch on the current stream and wait for nothing else. A launch on another "
    "stream is a race.",
    star=True,
    alone=True,  # the row measures time to see what waits
)
def side_stream(t: Trial) -> None:
    """A side stream gets the right results at once, while the default stream is busy."""
    if t.place.simulated:
        _simulate_placement(t, ("stream", "synchronises"))
        return
    s = t.largest()
    right = s.results()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    torch.cuda._sleep(2_000_000_000)  # about a second on the default stream
    started = time.monotonic()
    with torch.cuda.stream(side):
        got = [x.clone() for x in s.results()]
        side.synchronize()
        values = [x.cpu() for x in got]
    took = time.monotonic() - started
    torch.cuda.synchronize()
    if took > 0.5:
        raise Fault(
            f"the side stream waited {took:.2f} s for the default stream: the op synchronises the "
            "device, or launches on the default stream; launch on current_stream(x)"
        )
    for a, b in zip(values, right, strict=True):
        compare.check_same_bits(
            a, b.cpu(), "the result on a side stream differs bitwise (launched on another stream?)"
        )


@row(
    32,
    "graph",
    "g",
    "A captured CUDA graph replays on new data only if the op hides no allocation or "
    "synchronisation.",
    star=True,
)
def graph(t: Trial) -> None:
    """Forward and backward are captured together and replayed on other values."""
    s = t.largest()
    for name in s.floats:
        s = t.trying(s.change(name, inputs.contiguous_copy))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        s.results()  # loads, and warms up
    torch.cuda.current_stream().wait_stream(side)
    captured_graph = torch.cuda.CUDAGraph()
    case = cases.as_leaves(s.case)
    grads = [inputs.random_gradient(o, t.seed) for o in as_tuple(t.op(*s.case))]
    with torch.cuda.graph(captured_graph):
        captured = _outputs_and_gradients(t, case, grads)
    for tensor in s.floats.values():
        tensor.copy_(tensor.flip(0) if tensor.dim() else -tensor)
    captured_graph.replay()
    torch.cuda.synchronize()
    right = _outputs_and_gradients(t, cases.as_leaves(s.case), grads)
    for a, b in zip(captured, right, strict=True):
        compare.check_same_bits(a, b, "the result of the replayed graph differs bitwise")


def _outputs_and_gradients(
    t: Trial, case: cases.Case, grads: list[torch.Tensor]
) -> list[torch.Tensor]:
    outputs = as_tuple(t.op(*case))
    pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if o.requires_grad]
    found: tuple[torch.Tensor | None, ...] = ()
    if pairs:
        found = torch.autograd.grad(
            [o for o, _ in pairs],
            cases.differentiable(case),
            [g for _, g in pairs],
            allow_unused=True,
        )
    return [o.detach() for o in outputs] + [g for g in found if g is not None]


@row(
    33,
    "first-call-in-capture",
    "g",
    "A kernel cannot be loaded while a graph is captured. The error must say what to do.",
)
def first_call_in_capture(t: Trial) -> None:
    """The error of a first call during capture says to run the op once before."""
    kept, load._loaded = load._loaded, {}
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            load.ensure(t.op, t.op.name, t.place.device)
    except KernelUnavailable as error:
        if "run it once before capturing" not in str(error):
            raise Fault(f"the message does not say what to do: {error}") from None
        t.note = "refused with a message that says what to do"
        return
    finally:
        load._loaded = kept
    raise Fault("a first call during capture loads a kernel without an error")


@row(
    46,
    "out-of-memory",
    "g",
    "Running out of memory inside the op must raise torch.OutOfMemoryError, and the next call "
    "must work.",
    alone=True,  # other rows must not use up the memory
)
def out_of_memory(t: Trial) -> None:
    """The allocator gets no room beyond the inputs."""
    s = _enlarged(t)
    right = s.results(False)
    needs = max(r.numel() * r.element_size() for r in right)
    if needs < 8 << 20:
        raise NotApplicable("its outputs are too small to run out of memory")
    del right
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
    hoard: list[torch.Tensor] = []
    try:
        hoard.extend(_what_is_left(2 << 20))
        s.call()
    except torch.OutOfMemoryError:
        pass
    except RuntimeError as error:
        raise Fault(
            f"running out of memory raises {type(error).__name__}, not torch.OutOfMemoryError: "
            f"{error}"
        ) from None
    else:
        raise Fault("the op got memory beyond the allocator's limit")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        hoard.clear()
    s.forward()


def _what_is_left(size: int) -> Iterator[torch.Tensor]:
    """All that the allocator can give in pieces of this size; segments are larger than tensors."""
    with contextlib.suppress(torch.OutOfMemoryError):
        while True:
            yield torch.empty(size, dtype=torch.uint8, device="cuda")


def _enlarged(t: Trial) -> Situation:
    """The case with the most output for its sizes, made large."""
    for base in t.kinds(t.dtypes[0]):
        sizes = base.sizes()
        if sizes and max(x.dim() for x in base.tensors.values()) <= 2:
            with contextlib.suppress(TooLarge):  # both dims of a square grow
                s = base.resize({**{n: min(n, 1024) for n in sizes}, sizes[0]: 1 << 15})
                if s.makes_sense() and s.elements > 1 << 22:
                    return t.trying(s)
    return t.largest()


@row(
    48,
    "architecture",
    "g",
    "A binary for another architecture must be refused with an error that lists both "
    "architectures.",
)
def architecture(t: Trial) -> None:
    """Relabel the op's library as built for another architecture."""
    if not t.place.target.sources(t.op):
        raise NotApplicable("it is composed of other ops and has no library")
    t.largest().call()
    library = load.loaded_path(t.op, t.place.target.name)
    beside = library.with_suffix(".json")
    manifest = json.loads(
        (beside if beside.exists() else library.parent / "manifest.json").read_text()
    )
    other = "8.0" if torch.cuda.get_device_capability()[0] != 8 else "9.0"
    before = os.environ.get("OPFORGE_PREBUILT")
    with tempfile.TemporaryDirectory() as folder:
        name = stem(t.op.name, t.place.target.name)
        shutil.copy(library, Path(folder) / f"{name}.so")
        manifest |= {"archs": [other], "library": f"{name}.so"}
        (Path(folder) / f"{name}.json").write_text(json.dumps(manifest))
        os.environ["OPFORGE_PREBUILT"] = folder
        try:
            load.find(t.op, t.place.target.name)
        except KernelUnavailable as error:
            mine = ".".join(map(str, torch.cuda.get_device_capability()))
            if other not in str(error) or mine not in str(error):
                raise Fault(f"the message does not list both architectures: {error}") from None
            return
        finally:
            if before is None:
                del os.environ["OPFORGE_PREBUILT"]
            else:
                os.environ["OPFORGE_PREBUILT"] = before
    raise Fault("a library for another architecture was accepted")
