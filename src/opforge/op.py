# SPDX-License-Identifier: Apache-2.0
"""``Op``, the record that declares an operator. Everything else is derived from it.

An op folder's ``op.py`` makes exactly one ``Op``. Names tie its parts together: a backward asks for
``grad_<output>``, for inputs and outputs it wants saved (by their names), for ``<input>_shape``,
``needs_<input>`` and ``may_overwrite``, and gets just those. The record's other functions get the
arguments that their parameters name, see :class:`Op`.
"""

from __future__ import annotations

import fnmatch
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

import opforge.registration.schema as schemas
from opforge.errors import RecordError
from opforge.registration.by_name import by_name

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

DEFAULT_NAMESPACE = "opforge_user"

MAY_OVERWRITE = "may_overwrite"  # a bool that backwards can ask for, see gradient.py


@dataclass(frozen=True)
class Backward:
    """The backward op: a schema and a reference of its own, like the forward's.

    Args:
        schema: its arguments say what is saved, its returns are named ``grad_<input>``. A ``bool
            may_overwrite`` among them is true where nobody will read the saved outputs again: the
            backward may write to them, or take their memory for its results.
        reference: the same in plain PyTorch. What it gets of the forward's statistics is constant
            to it: let it make its own, and it can be differentiated again.
        unsaved: given those of the forward's arguments that it asks for, names those that the
            backward can do without this time; it gets None, and they are not kept alive. It may
            go by numbers, shapes and what is None, never by values: tensors have none while a
            model is compiled.
        shared: gradients that are others', as ``{"residual": "grad_y"}`` for what is only added.
            Where the backward returns none for the first, or an empty tensor, it is the second:
            an output's, as it comes, or another one that is returned. Nothing is written twice.
        overwrites: ``{"x": "overwrite"}``: where the bool argument ``overwrite`` of both schemas is
            true, the kernel may write the gradient of ``x`` over ``x`` and return ``x`` itself. It
            gets false where that cannot be: compiled, transformed, or differentiated again.
        composed: as the op's.
    """

    schema: str
    reference: Callable[..., Any]
    unsaved: Callable[..., Sequence[str]] | None = None
    shared: Mapping[str, str] = field(default_factory=dict)
    overwrites: Mapping[str, str] = field(default_factory=dict)
    composed: Callable[..., Any] | None = None


@dataclass(frozen=True)
class PackageHeaders:
    """Headers that an installed Python package carries, such as CUTLASS's.

    Args:
        distribution: the name that pip installs it by; its version is part of the build's key.
        path: the folder to include, as the package installs it.
    """

    distribution: str
    path: str


@dataclass(frozen=True)
class Build:
    """What it takes to compile an op, beside the sources in its folder. All of it is in the key.

    Args:
        include: more folders of headers: paths (relative ones from the op's folder) or
            :class:`PackageHeaders`.
        flags: more compiler flags, by target: ``{"cuda": ["--use_fast_math"], "cpu": [...]}``.
            The simulator's are under ``"sim"``.
        libraries: more libraries to link, by target, as the linker takes them: ``["-lcublasLt"]``.
        archs: the GPU targets its kernels need, such as ``["9.0a"]``. Each takes the place of the
            plain architecture where that is built for.
        not_simulated: why its CUDA kernels cannot run in the simulator. `opforge check` and
            `opforge sim` show those rows as not run, with this reason.
    """

    include: Sequence[str | PackageHeaders] = ()
    flags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    libraries: Mapping[str, Sequence[str]] = field(default_factory=dict)
    archs: Sequence[str] = ()
    not_simulated: str = ""

    def __post_init__(self) -> None:
        lists = {"include": self.include, "archs": self.archs}
        lists |= {f"flags of {t}": v for t, v in self.flags.items()}
        lists |= {f"libraries of {t}": v for t, v in self.libraries.items()}
        for what, value in lists.items():
            if isinstance(value, str):
                raise RecordError(f"Build has {value!r} for {what}; it takes a list of strings")
        for what, given in (("flags", self.flags), ("libraries", self.libraries)):
            if unknown := set(given) - {"cpu", "cuda", "sim"}:
                raise RecordError(
                    f"Build has {what} for {unknown.pop()!r}; targets are cpu, cuda and sim"
                )


@dataclass(frozen=True)
class Cost:
    """The fewest bytes an op must move and the operations it must do."""

    bytes: int
    operations: int
    written: int = 0  # of the bytes
    floor: int = 0  # what no implementation can do without: one may save less for its backward


@dataclass(frozen=True)
class Make:
    """Makes the tensors of a case: ``make(8, 33)`` is a random tensor of that shape."""

    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    seed: int = 0
    requires_grad: bool = False
    _made: list[int] = field(default_factory=list, repr=False)

    def __call__(self, *shape: int) -> torch.Tensor:
        """A random tensor of this shape; every call draws other values."""
        # The generator lives on the CPU so that a case is the same on every device.
        self._made.append(1)
        generator = torch.Generator().manual_seed(self.seed * 1009 + len(self._made))
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        return values.to(self.device, self.dtype).requires_grad_(self.requires_grad)


@dataclass(eq=False)
class Op:
    """Declares one operator.

    ``reference`` and ``composed`` take the schema's arguments in order. ``statistics``,
    ``validate``, ``operations``, ``bytes``, ``product``, ``module``, what a function of ``peers``
    returns and :class:`Backward`'s ``unsaved`` get by name what they ask for:
    ``operations=lambda x: 4 * x.numel()``. ``**kwargs`` asks for all arguments. A parameter with a
    default that names no argument keeps its default, as in ``lambda x, factor=4: …``.

    Args:
        schema: ``"name(Tensor x, float scale) -> Tensor y"``; every argument and return is named.
        reference: the math in plain PyTorch, the definition of truth; takes the schema's arguments.
        backward: a :class:`Backward` (an op with kernels), or a function in plain PyTorch that
            returns one gradient per tensor input. Without it the gradient is the VJP of the
            reference.
        composed: what runs in place of kernels, on every device, where an op is made of others and
            has no C++ of its own: a function of its arguments that calls torch and other ops, below
            autograd, and returns all that the schema does.
        dtypes: what every tensor argument may have.
        own_dtypes: the arguments with dtypes of their own, by name: labels, seeds, positions.
        statistics: what the forward returns for its backward alone, after its outputs and by name:
            functions in plain PyTorch. Callers of the op do not see them.
        validate: raises ValueError or TypeError for arguments the reference would accept but the
            op does not, with a message that names the argument.
        cases: yields argument tuples, given a :class:`Make`. Without it a few are derived from the
            schema: those that the reference takes.
        operations: arithmetic operations per call, for the roofline.
        bytes: the fewest bytes a call must move, where that is less than all its tensors (a lookup
            in a table, say); by default every tensor is read or written once.
        sized: ``sized(make, *shape)`` gives the arguments of a benchmark of that shape, or a dict
            of them by name where several are worth timing. By default a case is resized.
        peers: other ways to compute the op, by name: functions that import one and return a
            callable. ImportError says that it is not installed.
        product: for matrix work, the two matrices whose library product is the speed to reach.
        like: the tensor input whose strides the output takes. By default outputs are contiguous.
        pointwise: every output element depends on one element of each (broadcast) input.
        rowwise: output elements depend on several elements of an input (norms, softmax, sums along
            a dim): in whatever order these are added up.
        same_bits: on the CPU the result does not depend on the number of threads, to the bit.
        autocast: what autocast does to the inputs: ``"promote"`` to the widest of them, a dtype,
            or nothing.
        module: makes the ``nn.Module`` around the op, if there is one, for arguments of a case;
            called with the tensor arguments that the module does not own, it is the op.
        build: what it takes to compile its sources beside the folder: a :class:`Build`.
        namespace: ``torch.ops.<namespace>``; ``opforge`` for the built-in ops.
    """

    schema: str = ""
    reference: Callable[..., Any] | None = None
    backward: Backward | Callable[..., Any] | None = None
    composed: Callable[..., Any] | None = None
    dtypes: tuple[torch.dtype, ...] = FLOATS
    own_dtypes: Mapping[str, tuple[torch.dtype, ...]] = field(default_factory=dict)
    statistics: Mapping[str, Callable[..., torch.Tensor]] = field(default_factory=dict)
    validate: Callable[..., None] | None = None
    cases: Callable[[Make], Iterable[tuple[Any, ...]]] | None = None
    operations: Callable[..., int] | None = None
    bytes: Callable[..., int] | None = None
    sized: Callable[..., Any] | None = None
    peers: Mapping[str, Callable[[], Callable[..., Any]]] = field(default_factory=dict)
    product: Callable[..., tuple[torch.Tensor, torch.Tensor]] | None = None
    like: str | None = None
    pointwise: bool = False
    rowwise: bool = False
    same_bits: bool = False
    autocast: Literal["promote"] | torch.dtype | None = None
    module: Callable[..., torch.nn.Module] | None = None
    build: Build = field(default_factory=Build)
    namespace: str = DEFAULT_NAMESPACE

    # Set when the op is loaded from its folder.
    folder: Path | None = field(default=None, init=False)
    _call: Callable[..., Any] = field(init=False, repr=False)
    _gradient: Any = field(default=None, init=False, repr=False)  # how it is differentiated
    # By the name of the schema: what is composed, with the checks and promises of a kernel.
    _composed: dict[str, Callable[..., Any]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.schema:
            raise RecordError(
                "the record has no schema; give one, as in "
                "Op(schema='relu(Tensor x) -> Tensor y', reference=torch.relu)"
            )
        self.forward = schemas.parse(self.schema)
        self._call = self._refuse  # until it is loaded: no call has to look whether it is
        if self.reference is None:
            raise RecordError(
                f"the record of {self.name} has no reference; pass reference=<a function in plain "
                "PyTorch that computes the op>"
            )
        tensors = [a.name for a in self.forward.args if a.type == "Tensor"]
        if not tensors:
            raise RecordError(f"schema {self.schema!r} has no Tensor argument; an op takes one")
        if self.like is not None and self.like not in tensors:
            raise RecordError(
                f"the record of {self.name} says like={self.like!r}, "
                f"but its (not optional) tensor inputs are {', '.join(tensors)}"
            )
        self._check_statistics()
        if unknown := set(self.own_dtypes) - {a.name for a in self.forward.args if a.is_tensor}:
            raise RecordError(
                f"the record of {self.name} has own_dtypes for {unknown.pop()!r}, "
                "which is no tensor of its schema"
            )
        if taken := {"opforge", "eager", "torch.compile"} & set(self.peers):
            raise RecordError(
                f"the record of {self.name} calls a peer {taken.pop()!r}, which stands for the op "
                "itself or its reference; choose another name"
            )
        self._check_names_are_distinct()
        schemas.check_name(self.namespace, "namespace")
        self._resolve_parameters()

    @property
    def name(self) -> str:
        """The name in the schema."""
        return self.forward.name

    @property
    def outputs(self) -> tuple[schemas.Arg, ...]:
        """The returns that callers get: all but the statistics."""
        return self.forward.returns[: len(self.forward.returns) - len(self.statistics)]

    def allowed(self, argument: str) -> tuple[torch.dtype, ...]:
        """The dtypes that a tensor argument may have."""
        return self.own_dtypes.get(argument, self.dtypes)

    def returned(self, *args: Any) -> tuple[torch.Tensor, ...]:
        """All that the schema returns, in plain PyTorch: the outputs, then the statistics."""
        assert self.reference is not None
        hidden = [statistic(*args) for statistic in self.statistics.values()]
        return (*as_tuple(self.reference(*args)), *hidden)

    @property
    def kernels(self) -> tuple[schemas.Schema, ...]:
        """The schemas that C++ implements: the forward and, where there is one, the backward op."""
        if isinstance(self.backward, Backward):
            return (self.forward, schemas.parse(self.backward.schema))
        return (self.forward,)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run the op on the schema's arguments, all of them, in order or by name."""
        if named:
            args = self.forward.in_order(args, named)
        return self._call(*args)

    def _refuse(self, *args: Any) -> Any:
        raise RecordError(f"{self.name} is not loaded; use opforge.load(<its folder>)")

    @property
    def gradient_formula(self) -> Callable[..., Any] | None:
        """The backward in plain PyTorch, where the record has one."""
        return self.backward.reference if isinstance(self.backward, Backward) else self.backward

    def iter_cases(self, make: Make) -> Iterator[tuple[Any, ...]]:
        """The record's cases, checked against the schema; derived from it if there are none."""
        if self.cases is None:
            from opforge.truth import derived_cases  # which needs this module

            yield from derived_cases.make_all(self, make)
            return
        for case in self.cases(make):
            if len(case) != len(self.forward.args):
                raise RecordError(
                    f"a case of {self.name} has {len(case)} values, "
                    f"its schema {self.schema!r} has {len(self.forward.args)} arguments"
                )
            yield case

    def cost(self, *args: Any) -> Cost:
        """Every tensor of the caller read or written once, and the record's operation count."""
        outputs = self._on_meta([a.to("meta") if isinstance(a, torch.Tensor) else a for a in args])
        read = sum_of_bytes(a for a in args if isinstance(a, torch.Tensor))
        written = sum_of_bytes(outputs[: len(self.outputs)])
        operations = self.operations(*args) if self.operations else 0
        moved = min(self.bytes(*args), read + written) if self.bytes else read + written
        return Cost(moved, operations, min(written, moved), moved)

    def backward_cost(self, *args: Any) -> Cost:
        """Gradients and what was saved read once, new gradients written once.

        A gradient that is a view of an incoming one costs nothing, one of two inputs is one.
        """
        leaves = [
            a.to("meta").requires_grad_(a.is_floating_point()) if isinstance(a, torch.Tensor) else a
            for a in args
        ]
        saved: list[torch.Tensor] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            saved.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            outputs = [o for o in self._on_meta(leaves) if o.requires_grad]
        wanted = [a for a in leaves if isinstance(a, torch.Tensor) and a.requires_grad]
        if not outputs:
            return Cost(0, 0)
        incoming = [torch.empty_like(o) for o in outputs]
        found = torch.autograd.grad(outputs, wanted, incoming, allow_unused=True)
        known = {t.untyped_storage()._cdata for t in incoming}
        new = {
            (g.untyped_storage()._cdata, g.storage_offset(), g.shape, g.stride()): g
            for g in found
            if g is not None
        }
        written = sum_of_bytes(g for (storage, *_), g in new.items() if storage not in known)
        if not written:
            return Cost(0, 0)
        kept = {t.untyped_storage()._cdata: t for t in saved}
        read = sum_of_bytes(incoming)
        return Cost(read + written + sum_of_bytes(kept.values()), 0, written, read + written)

    def _on_meta(self, args: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        return as_tuple(getattr(getattr(torch.ops, self.namespace), self.name)(*args))

    def _resolve_parameters(self) -> None:
        """From here on the record's functions take all arguments, and use those they ask for."""
        for name in ("validate", "operations", "bytes", "product", "module"):
            if (function := getattr(self, name)) is not None:
                setattr(self, name, by_name(function, self.forward, name))
        self.statistics = {
            name: by_name(function, self.forward, f"statistics[{name!r}]")
            for name, function in self.statistics.items()
        }
        self.peers = {
            name: functools.partial(self._peer, name, find) for name, find in self.peers.items()
        }

    def _peer(self, name: str, find: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        """What is installed of a peer; only then its parameters can be seen."""
        return by_name(find(), self.forward, f"what peers[{name!r}] returns")

    def _check_statistics(self) -> None:
        names = [r.name for r in self.forward.returns]
        if not self.statistics:
            return
        if len(self.statistics) >= len(names) or list(self.statistics) != [
            r.name for r in self.forward.returns[len(self.outputs) :]
        ]:
            raise RecordError(
                f"the statistics of {self.name} must be the last returns of its schema, in order; "
                f"the record has {', '.join(self.statistics)}, the schema returns "
                f"{', '.join(names)}"
            )
        if not isinstance(self.backward, Backward):
            raise RecordError(
                f"the record of {self.name} has statistics but no Backward, an op with kernels, "
                "that could use them"
            )

    def _check_names_are_distinct(self) -> None:
        """A backward asks by name, so no two things may have one name."""
        inputs = [a.name for a in self.forward.args]
        outputs = [r.name for r in self.forward.returns]
        derived = [f"grad_{o}" for o in outputs]
        derived += [f"needs_{i}" for i in inputs] + [f"{i}_shape" for i in inputs]
        names = [*inputs, *outputs, *derived, MAY_OVERWRITE]
        for name in {n for n in names if names.count(n) > 1}:
            raise RecordError(
                f"schema {self.schema!r}: {name!r} would stand for two things; rename an argument "
                "or return (grad_<output>, needs_<input>, <input>_shape and "
                f"{MAY_OVERWRITE} are taken, too)"
            )


# Folders below an op's that hold nothing of it.
_FOREIGN = {"__pycache__", "prebuilt", "build", "dist", "tests"}


def files_of(folder: Path, *patterns: str) -> list[Path]:
    """An op's files of these patterns, also in subfolders, in a fixed order.

    Left out: hidden folders, virtual environments, other ops, tests and what a build leaves behind.
    """
    found = []
    for path, folders, names in os.walk(folder):
        below = Path(path)
        folders[:] = [f for f in folders if not _is_foreign(below / f)]
        found += [below / n for n in names if any(fnmatch.fnmatch(n, p) for p in patterns)]
    return sorted(found)


def _is_foreign(folder: Path) -> bool:
    if folder.name in _FOREIGN or folder.name.startswith("."):
        return True
    return any((folder / mark).exists() for mark in ("op.py", "pyvenv.cfg"))


def sum_of_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """What tensors hold together."""
    return sum(t.numel() * t.element_size() for t in tensors)


def as_tuple(value: Any) -> tuple[Any, ...]:
    """One output or several, as a tuple."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def as_result(values: Sequence[Any]) -> Any:
    """The other way round: what a function with these outputs returns."""
    return values[0] if len(values) == 1 else tuple(values)


def is_float(value: Any) -> bool:
    """Whether a value is a floating point tensor."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()
