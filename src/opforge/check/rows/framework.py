# SPDX-License-Identifier: Apache-2.0
"""Rows about the op inside PyTorch: opcheck, compile, export, vmap, autocast, DTensor, modules."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch

from opforge.check import ahead_of_time, explain
from opforge.check.row import Fault, NotApplicable, NotRun, Trial, row
from opforge.check.situation import Situation
from opforge.op import Op, as_tuple, is_float
from opforge.truth import cases, compare, inputs


def _overload(op: Op) -> Any:
    return getattr(getattr(torch.ops, op.namespace), op.name).default


@row(
    34,
    "opcheck",
    "c g",
    "torch.library.opcheck tests a registration: schema, fake kernel, autograd, tracing.",
    star=True,
)
def opcheck(t: Trial) -> None:
    """Run opcheck over dtypes, kinds of cases and layouts, with and without gradients."""
    count = 0
    for i, base in enumerate(t.kinds()):
        both = t.full or i == 0
        for change in (inputs.contiguous, inputs.transposed) if both else (inputs.transposed,):
            s = base
            for name in base.tensors:
                s = s.change(name, change)
            overload = f"torch.ops.{t.op.namespace}.{t.op.name}.default"
            t.trying(s).last = f"torch.library.opcheck({overload}, case)"
            for case in (s.case, cases.as_leaves(s.case)) if both else (cases.as_leaves(s.case),):
                try:
                    torch.library.opcheck(_overload(t.op), case)
                except Exception as error:
                    raise Fault(explain.opcheck(_innermost(error))) from None
                count += 1
    if count:  # opcheck bypasses the op's own call, which would count
        t.note = f"{count} calls of opcheck"


def _innermost(error: BaseException) -> str:
    """opcheck's message, and those of the errors that caused it."""
    texts = [str(error)]
    while error.__cause__ is not None:
        error = error.__cause__
        texts.append(f"{type(error).__name__}: {error}")
    return "\n".join(dict.fromkeys(texts))


@row(
    37,
    "compile",
    "c g",
    "torch.compile(fullgraph=True) must find no graph break, recompile rarely, and give the same "
    "result as without it.",
    star=True,
)
def compile(t: Trial) -> None:
    """Compare static and dynamic shapes, forward and backward, with the truth."""
    backend = "inductor" if t.full else "aot_eager"
    found = [s for s in t.kinds(t.dtypes[0]) if s.elements]
    for s in found[: 3 if t.full else 1]:
        t.trying(s)
        for dynamic in (False, True):
            torch._dynamo.reset()
            compiled = torch.compile(
                lambda *a: t.op(*a), fullgraph=True, dynamic=dynamic, backend=backend
            )
            given = f'fullgraph=True, dynamic={dynamic}, backend="{backend}"'
            compiler = f"torch.compile(lambda *a: op(*a), {given})"
            s.last = f"checks.check_forward(op, case, place, run={compiler})"
            cases.check_forward(t.op, s.case, t.place, run=compiled)
            if s.has_gradient():
                s.last = f"checks.check_backward(op, checks.as_leaves(case), run={compiler})"
                leaves = cases.as_leaves(s.case)
                gradient = _seeded(t)
                cases.check_backward(t.op, leaves, gradient, t.place, run=compiled)
    _recompiles(t, found)
    t.note = f"backend {backend}"


def _seeded(t: Trial) -> cases.GradsFor:
    return lambda o: inputs.random_gradient(o, t.seed)


def _recompiles(t: Trial, found: list[Situation]) -> None:
    """Other sizes of one dim compile at most once more."""
    for base in found:
        sizes = [n for n in base.sizes() if n > 1]
        tries = [base.resize({sizes[0]: n}) for n in (5, 6, 7, 8)] if sizes else []
        # Each in its own memory, because a view costs one more compilation.
        tries = [_copied(s) for s in tries]
        if not tries or not all(s.makes_sense() for s in tries):
            continue
        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounter()
        compiled = torch.compile(lambda *a: t.op(*a), fullgraph=True, backend=counter)
        for s in tries:
            t.trying(s)
            compiled(*s.case)
        if counter.frame_count > 2:
            raise Fault(
                f"{counter.frame_count} compilations for 4 sizes of one dim: something in the op "
                "asks for a size as a number (int(x.shape[0]), a Python branch on it)"
            )
        return


def _copied(s: Situation) -> Situation:
    for name in s.tensors:
        s = s.change(name, inputs.contiguous_copy)
    return s


@row(
    38,
    "export",
    "c g",
    "A model with the op must survive export, saving, loading and ahead-of-time compilation.",
)
def export(t: Trial) -> None:
    """Export, save and load with torch.export; a full check also uses AOTInductor."""
    s = t.trying(next((s for s in t.kinds(t.dtypes[0]) if s.elements), t.largest()))
    tensors = {n: x.detach() for n, x in s.tensors.items()}

    class Model(torch.nn.Module):
        def forward(self, *given: torch.Tensor) -> Any:
            return t.op(*{**s.values, **dict(zip(tensors, given, strict=True))}.values())

    right = as_tuple(t.op(*s.case))
    program = torch.export.export(Model(), tuple(tensors.values()))
    with tempfile.TemporaryDirectory() as folder:
        torch.export.save(program, f"{folder}/model.pt2")
        run = torch.export.load(f"{folder}/model.pt2").module()
        for a, b in zip(as_tuple(run(*tensors.values())), right, strict=True):
            compare.check_same_bits(a, b, "the exported op's result differs bitwise")
    t.note = "exported"
    if t.full:
        t.note += f", {ahead_of_time.check(t.op, t.place, s.number, s.dtype, s.seed)}"


@row(39, "vmap", "c g", "torch.vmap must give what a loop over the samples gives.")
def vmap(t: Trial) -> None:
    """All tensors are batched, then only the first."""
    for base in t.kinds(t.dtypes[0]):
        s = t.trying(base)
        for batched in {tuple(s.tensors), tuple(s.tensors)[:1]}:
            samples = {n: torch.stack([s.tensors[n], _another(s.tensors[n])], -1) for n in batched}

            def run(*given: torch.Tensor) -> Any:
                return t.op(*{**s.values, **dict(zip(batched, given, strict=True))}.values())  # noqa: B023

            got = as_tuple(torch.vmap(run, in_dims=-1)(*samples.values()))
            loop = [as_tuple(run(*[x[..., i] for x in samples.values()])) for i in range(2)]
            for i, one in enumerate(got):
                right = torch.stack([sample[i] for sample in loop])
                compare.check_same_bits(one, right, "vmap differs bitwise from a loop")
            if s.has_gradient():
                _batched_gradients(t, s, samples, run)


def _batched_gradients(
    t: Trial, s: Situation, samples: dict[str, torch.Tensor], run: Callable[..., Any]
) -> None:
    """The gradients of each sample by torch.func equal those of a loop."""
    positions = tuple(i for i, name in enumerate(samples) if samples[name].is_floating_point())
    if not positions:  # only bytes or labels are batched
        return
    made = as_tuple(run(*[x[..., 0] for x in samples.values()]))
    weights = [inputs.random_gradient(o, t.seed) for o in made if o.is_floating_point()]

    def loss(*given: torch.Tensor) -> torch.Tensor:
        outputs = [o for o in as_tuple(run(*given)) if o.is_floating_point()]
        return torch.stack([(w * o).sum() for w, o in zip(weights, outputs, strict=True)]).sum()

    gradients = torch.func.grad(loss, positions)
    got = torch.vmap(gradients, in_dims=-1)(*samples.values())
    for k in range(2):
        given = {name: x[..., k] for name, x in samples.items()}
        alone = gradients(*given.values())
        if all(bool(compare.same_bits(a[k], b).all()) for a, b in zip(got, alone, strict=True)):
            continue
        if t.op.pointwise:
            for a, b in zip(got, alone, strict=True):
                what = "vmap of the gradient differs bitwise from a loop"
                compare.check_same_bits(a[k], b, what)
        # A batch may be added up in another order than one sample.
        names = [n for n in samples if samples[n].is_floating_point()]
        case = tuple({**s.values, **given}.values())
        wanted = [i for i, n in enumerate(s.values) if n in names]
        found = dict(zip(names, (g[k] for g in got), strict=True))
        truth = cases.true_gradients(t.op, cases.as_leaves(case, wanted), weights)
        truth.check([found.get(n) for n, v in s.values.items() if is_float(v)])


def _another(t: torch.Tensor) -> torch.Tensor:
    """A tensor like ``t`` with other values; half as large, so that a maximum differs, too."""
    other = inputs.resample(t, tuple(t.shape), seed=1)
    return inputs.scaled(other, 0.5) if t.is_floating_point() else other


@row(40, "autocast", "c g", "Under autocast the op gives the dtype that its record documents.")
def autocast(t: Trial) -> None:
    """Inputs are bfloat16, and mixed if the record promotes."""
    if torch.bfloat16 not in t.op.dtypes:
        raise NotApplicable("it takes no bfloat16")
    assert t.op.reference is not None
    for base in t.kinds(torch.bfloat16):
        names = list(base.floats)
        tries = [base]
        if t.op.autocast in ("promote", "low") and len(names) > 1 and torch.float32 in t.op.dtypes:
            tries.append(base.change(names[-1], inputs.to_dtype, torch.float32))
        for s in tries:
            dtypes = [x.dtype for x in s.floats.values()]
            target = t.op.autocast
            if target == "promote":
                target = torch.float32 if torch.float32 in dtypes else torch.bfloat16
            elif target == "low":
                target = torch.bfloat16
            cast = cases.cast(s.case, target) if isinstance(target, torch.dtype) else s.case
            wanted = as_tuple(t.op.reference(*cast))
            with torch.autocast(t.place.device, dtype=torch.bfloat16):
                t.trying(
                    s
                ).last = "with torch.autocast(place.device, torch.bfloat16): print(op(*case).dtype)"
                got = as_tuple(s.op(*s.case))
            for a, b in zip(got, wanted, strict=True):
                if a.dtype != b.dtype:
                    raise Fault(
                        f"under autocast inputs of {', '.join(map(str, dtypes))} give {a.dtype}; "
                        f"the record's autocast={t.op.autocast!r} means {b.dtype}"
                    )


@row(
    44,
    "distributed",
    "c g",
    "A sharded tensor must give the unsharded result, or an error that names the missing rule.",
)
def distributed(t: Trial) -> None:
    """The tensors are DTensors over one process."""
    if not torch.distributed.is_available():
        raise NotRun("torch is built without torch.distributed")
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    s = t.largest()
    right = as_tuple(t.op(*s.case))
    with _one_process(t.place.device) as mesh:
        sharded = tuple(
            distribute_tensor(v, mesh, [Shard(0)]) if isinstance(v, torch.Tensor) and v.dim() else v
            for v in s.case
        )
        try:
            got = as_tuple(t.op(*sharded))
        except (NotImplementedError, RuntimeError) as error:
            if t.op.name not in str(error) or "harding" not in str(error):
                raise
            t.note = f"refused: {error}"
            return
        for a, b in zip(got, right, strict=True):
            t.note = "one process"
            whole = a.full_tensor() if isinstance(a, DTensor) else a
            compare.check_same_bits(whole, b, "the sharded result differs bitwise")


@contextlib.contextmanager
def _one_process(device: str) -> Iterator[Any]:
    """A process group of this process alone; nothing is opened to the network."""
    dist: Any = torch.distributed
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield dist.init_device_mesh(device, (1,))
    finally:
        dist.destroy_process_group()


@row(
    49,
    "modules",
    "c g",
    "A module around the op must survive saving, copying and pickling, as models do.",
)
def modules(t: Trial) -> None:
    """Round trips by state_dict, deepcopy and pickle."""
    if t.op.module is None:
        raise NotApplicable("its record names no module")
    s = t.largest()
    module = t.op.module(*s.case).to(t.place.device, s.dtype)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    owned = len(list(module.parameters()))
    given = [x.detach() for x in s.tensors.values()][: len(s.tensors) - owned]
    right = module(*given)
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    loaded = t.op.module(*s.case).to(t.place.device, s.dtype)
    loaded.load_state_dict(torch.load(buffer, weights_only=True))
    twins = {
        "state_dict": loaded,
        "deepcopy": copy.deepcopy(module),
        "pickle": pickle.loads(pickle.dumps(module)),
    }
    for what, twin in twins.items():
        compare.check_same_bits(twin(*given), right, f"after {what}, the module differs bitwise")
