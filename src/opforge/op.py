# SPDX-License-Identifier: Apache-2.0
"""``Op``, the record that declares an operator. Everything else is derived from it.

The ``op.py`` of an op folder makes exactly one ``Op``. Its functions get their arguments by name.
The parameters of a backward can be ``grad_<output>``, an input or output (which is then saved),
``<input>_shape``, ``needs_<input>`` and ``may_overwrite``. :class:`Op` lists the other functions.
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

# What records call the kinds of targets that build/targets.py compiles sources for.
CPU_KIND, CUDA_KIND, SIM_KIND = "cpu", "cuda", "sim"

MAY_OVERWRITE = "may_overwrite"  # a bool parameter of backwards, see gradient.py


@dataclass(frozen=True)
class Backward:
    """The backward op. Like the forward, it has a schema and a reference.

    Args:
        schema: its arguments determine what is saved; its returns are named ``grad_<input>``. The
            argument ``bool may_overwrite`` is true if nobody reads the saved outputs again. Then
            the backward may write to them, or use their memory for its results.
        reference: the backward in plain PyTorch. The forward's statistics are constants to it. To
            be differentiable again, it must compute them itself.
        unsaved: takes arguments of the forward by name, and returns the names of inputs and
            outputs that the backward does not need this time. They are not kept alive, and the
            backward gets None. It may depend on numbers, shapes and on what is None, but not on
            values of tensors, which do not exist while a model is compiled.
        shared: gradients that equal others, as ``{"residual": "grad_y"}`` for an input that is only
            added. If the backward does not return the first, or returns an empty tensor for it,
            autograd gets the second: the gradient of an output, or another returned gradient. This
            avoids a copy.
        overwrites: as ``{"x": "overwrite"}``. If the bool argument ``overwrite`` of both schemas is
            true, the kernel may write the gradient of ``x`` over ``x`` and return ``x`` itself. It
            is false where that is impossible: compiled, transformed, or differentiated again.
        composed: as for :class:`Op`. A backward can be composed while the forward has kernels.
    """

    schema: str
    reference: Callable[..., Any]
    unsaved: Callable[..., Sequence[str]] | None = None
    shared: Mapping[str, str] = field(default_factory=dict)
    overwrites: Mapping[str, str] = field(default_factory=dict)
    composed: Callable[..., Any] | None = None


@dataclass(frozen=True)
class PackageHeaders:
    """Headers inside an installed Python package, such as CUTLASS.

    Args:
        distribution: its name for pip. Its version is part of the cache key.
        path: the include folder, relative to where the package is installed.
    """

    distribution: str
    path: str


@dataclass(frozen=True)
class Build:
    """Options for compiling an op's sources. All of them are part of the cache key.

    Args:
        include: more folders of headers: paths (relative to the op's folder) or
            :class:`PackageHeaders`.
        flags: more compiler flags for each target: ``{"cuda": ["--use_fast_math"], "cpu": [...]}``.
            The simulator is the target ``"sim"``.
        libraries: more linker arguments for each target, such as ``{"cuda": ["-lcublasLt"]}``.
        archs: the GPU targets that its kernels need, such as ``["9.0a"]``. Each replaces its plain
            architecture (9.0) in builds that include that.
        by_dtype: targets (``["cuda"]``, ``["cpu"]``) whose sources are compiled once per dtype,
            each into a library of its own, in parallel. A first call compiles and loads only the
            library for the dtype of the op's first tensor. ``dispatch`` then knows that dtype
            alone; use ``dispatch_all`` for tensors whose dtype may differ from it.
        on_demand: patterns of source files in the folder (``["units/*.cu"]``), each compiled into a
            library of its own when the host code first calls its ``opforge::Unit``.
        not_simulated: the reason why its CUDA kernels cannot run in the simulator. `opforge check`
            and `opforge sim` then show those rows as not run, with this reason.
    """

    include: Sequence[str | PackageHeaders] = ()
    flags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    libraries: Mapping[str, Sequence[str]] = field(default_factory=dict)
    archs: Sequence[str] = ()
    by_dtype: Sequence[str] = ()
    on_demand: Sequence[str] = ()
    not_simulated: str = ""

    def __post_init__(self) -> None:
        lists = {"include": self.include, "archs": self.archs}
        lists |= {"by_dtype": self.by_dtype, "on_demand": self.on_demand}
        lists |= {f"flags of {t}": v for t, v in self.flags.items()}
        lists |= {f"libraries of {t}": v for t, v in self.libraries.items()}
        for what, value in lists.items():
            if isinstance(value, str):
                raise RecordError(f"Build has {value!r} for {what}; it takes a list of strings")
        for pattern in self.on_demand:
            if not pattern.endswith((".cu", ".cpp")):
                raise RecordError(
                    f"Build has {pattern!r} for on_demand; it takes patterns of sources, such as "
                    "'units/*.cu' or 'units/*.cpp'"
                )
        for what, given in (("flags", self.flags), ("libraries", self.libraries)):
            if unknown := set(given) - {CPU_KIND, CUDA_KIND, SIM_KIND}:
                raise RecordError(
                    f"Build has {what} for {unknown.pop()!r}; "
                    f"targets are {CPU_KIND}, {CUDA_KIND} and {SIM_KIND}"
                )
        if unknown := set(self.by_dtype) - {CPU_KIND, CUDA_KIND}:
            raise RecordError(
                f"Build has by_dtype for {unknown.pop()!r}; "
                f"only {CPU_KIND} and {CUDA_KIND} are compiled by dtype"
            )


@dataclass(frozen=True)
class Cost:
    """The fewest bytes that an op must move, and its number of operations."""

    bytes: int
    operations: int
    written: int = 0  # how many of the bytes are written
    floor: int = 0  # fewest bytes for any implementation, which may save less for its backward


@dataclass(frozen=True)
class Make:
    """Makes the tensors of a case: ``make(8, 33)`` returns a random tensor of that shape."""

    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    seed: int = 0
    requires_grad: bool = False
    _made: list[int] = field(default_factory=list, repr=False)

    def __call__(self, *shape: int) -> torch.Tensor:
        """A random tensor of this shape. Each call draws new values."""
        # A generator on the CPU gives the same values for every device.
        self._made.append(1)
        generator = torch.Generator().manual_seed(self.seed * 1009 + len(self._made))
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        return values.to(self.device, self.dtype).requires_grad_(self.requires_grad)


@dataclass(eq=False)
class Op:
    """Declares one operator.

    ``reference`` and ``composed`` take all arguments of the schema, in order. These functions get
    only the arguments that their parameters name: ``statistics``, ``validate``, ``operations``,
    ``bytes``, ``product``, ``module``, the callables of ``peers``, and ``unsaved`` of
    :class:`Backward`. An example is ``operations=lambda x: 4 * x.numel()``. ``**kwargs`` asks for
    all arguments. A parameter that names no argument must have a default, which it keeps, as in
    ``lambda x, factor=4: …``.

    Args:
        schema: ``"name(Tensor x, float scale) -> Tensor y"``; names every argument and return.
        reference: the math in plain PyTorch, which defines the correct result.
        backward: a :class:`Backward` (an op with kernels), or a function in plain PyTorch that
            returns one gradient per tensor input. By default the gradient is the VJP of the
            reference.
        composed: for an op that is made of other ops and has no C++ of its own: a function that
            runs in place of kernels, on every device. It calls torch and other ops below autograd,
            and returns everything that the schema returns.
        dtypes: the dtypes that tensor arguments may have.
        own_dtypes: argument name -> its dtypes, for arguments such as labels, seeds and positions.
        statistics: name -> a function in plain PyTorch, for returns that only the backward sees.
            They come after the outputs in the schema. Callers of the op do not get them.
        validate: raises ValueError or TypeError for arguments that the reference accepts but the
            op does not. The message names the argument.
        cases: takes a :class:`Make` and yields argument tuples. By default a few are derived from
            the schema: those that the reference accepts.
        operations: arithmetic operations per call, for the roofline.
        bytes: the fewest bytes that a call must move, if that is less than all its tensors (as for
            a lookup in a table). By default every tensor is read or written once.
        sized: ``sized(make, *shape)`` returns the arguments of a benchmark for that shape, or a
            dict that names several sets of arguments. By default a case is resized. With
            ``make.requires_grad``, the arguments are for a forward that a backward follows.
        peers: name -> a function that imports another implementation and returns a callable. An
            ImportError means that it is not installed.
        product: for matrix work, the two matrices whose product by the library is the ceiling.
        like: the tensor input whose strides the output gets. By default outputs are contiguous.
        pointwise: every output element depends on one element of each (broadcast) input.
        rowwise: output elements add up several elements of an input, in any order (norms, softmax,
            sums along a dim).
        same_bits: on the CPU, the result has the same bits for any number of threads.
        autocast: how autocast casts the inputs: ``"promote"`` to the widest of them, ``"low"`` to
            the dtype of autocast, as torch casts those of matrix products, to another dtype, or
            not at all.
        module: takes arguments of a case and returns the ``nn.Module`` around the op. The module
            takes the tensor arguments that it does not own and computes the op.
        build: options for compiling its sources: a :class:`Build`.
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
    autocast: Literal["promote", "low"] | torch.dtype | None = None
    module: Callable[..., torch.nn.Module] | None = None
    build: Build = field(default_factory=Build)
    namespace: str = DEFAULT_NAMESPACE

    # Set when the op is loaded from its folder.
    folder: Path | None = field(default=None, init=False)
    _call: Callable[..., Any] = field(init=False, repr=False)
    _gradient: Any = field(default=None, init=False, repr=False)  # wires the backward into autograd
    # Schema name -> the composed function, with the same checks and outputs as a kernel.
    _composed: dict[str, Callable[..., Any]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.schema:
            raise RecordError(
                "the record has no schema; give one, as in "
                "Op(schema='relu(Tensor x) -> Tensor y', reference=torch.relu)"
            )
        self.forward = schemas.parse(self.schema)
        self._call = self._refuse  # replaced when it is loaded, so that calls need not check that
        if self.reference is None:
            raise RecordError(
                f"the record of {self.name} has no reference; pass reference=<a function in plain "
                "PyTorch that computes the op>"
            )
        tensors = [a.name for a in self.forward.args if a.type == "Tensor"]
        if not tensors:
            raise RecordError(
                f"schema {self.schema!r} has no Tensor argument; an op needs at least one"
            )
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
                f"the record of {self.name} names a peer {taken.pop()!r}, which is reserved for "
                "the op itself or its reference; choose another name"
            )
        self._check_names_are_distinct()
        schemas.check_name(self.namespace, "namespace")
        self._resolve_parameters()

    @property
    def name(self) -> str:
        """The op's name, from its schema."""
        return self.forward.name

    @property
    def outputs(self) -> tuple[schemas.Arg, ...]:
        """The returns that callers get: all except the statistics."""
        return self.forward.returns[: len(self.forward.returns) - len(self.statistics)]

    def allowed(self, argument: str) -> tuple[torch.dtype, ...]:
        """The dtypes that a tensor argument may have."""
        return self.own_dtypes.get(argument, self.dtypes)

    def returned(self, *args: Any) -> tuple[torch.Tensor, ...]:
        """All returns of the schema in plain PyTorch: the outputs, then the statistics."""
        assert self.reference is not None
        hidden = [statistic(*args) for statistic in self.statistics.values()]
        return (*as_tuple(self.reference(*args)), *hidden)

    @property
    def functions(self) -> tuple[schemas.Schema, ...]:
        """The schemas of the forward and, if there is one, of the backward op."""
        if isinstance(self.backward, Backward):
            return (self.forward, schemas.parse(self.backward.schema))
        return (self.forward,)

    @property
    def kernels(self) -> tuple[schemas.Schema, ...]:
        """The schemas that C++ implements: those of the functions that are not composed."""
        backward = self.backward.composed if isinstance(self.backward, Backward) else None
        composed = self.composed, backward
        return tuple(s for s, by in zip(self.functions, composed, strict=False) if by is None)

    @property
    def self_contained(self) -> bool:
        """Whether C++ implements all functions, so that the op can leave opforge by itself."""
        return self.kernels == self.functions

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run the op on all arguments of the schema, by position or by name."""
        if named:
            args = self.forward.in_order(args, named)
        return self._call(*args)

    def _refuse(self, *args: Any) -> Any:
        raise RecordError(f"{self.name} is not loaded; use opforge.load(<its folder>)")

    @property
    def gradient_formula(self) -> Callable[..., Any] | None:
        """The backward in plain PyTorch, or None if the record has none."""
        return self.backward.reference if isinstance(self.backward, Backward) else self.backward

    def iter_cases(self, make: Make) -> Iterator[tuple[Any, ...]]:
        """The record's cases, or cases derived from the schema. Their length is checked."""
        if self.cases is None:
            from opforge.truth import derived_cases  # here, because it imports this module

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
        """The cost of a forward: every tensor is moved once, and the record counts operations."""
        outputs = self._on_meta([a.to("meta") if isinstance(a, torch.Tensor) else a for a in args])
        read = sum_of_bytes(a for a in args if isinstance(a, torch.Tensor))
        written = sum_of_bytes(outputs[: len(self.outputs)])
        operations = self.operations(*args) if self.operations else 0
        moved = min(self.bytes(*args), read + written) if self.bytes else read + written
        return Cost(moved, operations, min(written, moved), moved)

    def backward_cost(self, *args: Any) -> Cost:
        """The cost of a backward: gradients and saved tensors are read once, new gradients written.

        A gradient that is a view of an incoming one costs nothing. A gradient that two inputs share
        counts once.
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
        """Wrap the record's functions to take all arguments and pass on those they ask for."""
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
        """Import a peer and wrap its callable. Its parameters are unknown before the import."""
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
        """Raise if a name has two meanings, because a backward asks for values by name."""
        inputs = [a.name for a in self.forward.args]
        outputs = [r.name for r in self.forward.returns]
        derived = [f"grad_{o}" for o in outputs]
        derived += [f"needs_{i}" for i in inputs] + [f"{i}_shape" for i in inputs]
        names = [*inputs, *outputs, *derived, MAY_OVERWRITE]
        for name in {n for n in names if names.count(n) > 1}:
            raise RecordError(
                f"schema {self.schema!r}: {name!r} would have two meanings; rename an argument "
                "or return (grad_<output>, needs_<input>, <input>_shape and "
                f"{MAY_OVERWRITE} are reserved)"
            )


# Subfolders that are not part of an op.
_FOREIGN = {"__pycache__", "prebuilt", "build", "dist", "tests"}


def files_of(folder: Path, *patterns: str) -> list[Path]:
    """An op's files that match these patterns, including subfolders, in a fixed order.

    Hidden folders, virtual environments, other ops, tests and build outputs are left out.
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
    """The total number of bytes of tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)


def as_tuple(value: Any) -> tuple[Any, ...]:
    """The outputs as a tuple, whether there are one or several."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def as_result(values: Sequence[Any]) -> Any:
    """The return value of a function with these outputs: a tensor, or a tuple of several."""
    return values[0] if len(values) == 1 else tuple(values)


def is_float(value: Any) -> bool:
    """Whether a value is a floating point tensor."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()
