# SPDX-License-Identifier: Apache-2.0
"""Traces a function and its gradients, with sizes and numbers as symbols, in float32.

torch does it: autograd runs on fake tensors, and Inductor's decompositions leave simple operations.
``opforge.formula.translate`` makes a graph of what was recorded.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch._dynamo.source import ConstantSource
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode

from opforge.formula.example import Example
from opforge.formula.source import Source, line_of

# The sizes of axes while tracing: all different, and none that a formula would mean. (Where torch
# makes a number of a size, the number still tells which.)
_SIZES = (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061)


@dataclass
class Trace:
    """What was recorded: an fx graph of the outputs, then of the gradients."""

    graph: torch.fx.Graph
    arguments: list[str]  # of the graph, in order: incoming gradients first
    outputs: int
    gradients: list[bool]  # whether there is one, for each tensor argument
    symbols: dict[str, str]  # name of a symbol -> axis, or "=name" of a number
    axis_sizes: dict[int, str]
    numbers: dict[str, float]  # the values that numbers had, where a constant may hide one
    why_no_gradient: str = ""
    output_dims: list[tuple[str | None, ...]] = field(default_factory=list)


class _Lines(TorchFunctionMode):
    """Notes the user's line of each operation."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        frame = sys._getframe(1)
        first, end = self._source.first, self._source.first + len(self._source.lines)
        found = 0
        while frame is not None:
            if frame.f_code.co_filename == self._source.file and first <= frame.f_lineno < end:
                found = frame.f_lineno
                break
            frame = frame.f_back  # type: ignore[assignment]
        fx_traceback.current_meta["stack_trace"] = f"line {found}" if found else ""
        return function(*args, **(kwargs or {}))


def trace(source: Source, example: Example, extra_axes: int = 0, turn: int = 0) -> Trace:
    """Record a call. Raises FormulaError at the user's line for what cannot be an op.

    With ``extra_axes``, tensors that have all axes of the frame get more, in front. Each turn has
    other sizes and other numbers.
    """
    tracer = _Tracer(source, example, extra_axes, turn)
    with _quiet():
        return tracer.run()


class _Tracer:
    def __init__(self, source: Source, example: Example, extra_axes: int, turn: int) -> None:
        self._source, self._example = source, example
        self._env = ShapeEnv()
        self._fakes = FakeTensorMode(shape_env=self._env, allow_non_fake_inputs=True)
        self._more = tuple(f"r{len(example.frame) - 1 + i}" for i in reversed(range(extra_axes)))
        axes = [*self._more, *example.frame]
        self._turn = turn
        self._sizes = dict(zip(axes, _SIZES[turn:], strict=False))
        if len(self._sizes) < len(axes):
            raise source.error(f"tensors of more than {len(_SIZES) - 2} dims are not supported")
        self._values: dict[str, Any] = {}
        self._outputs: tuple[Any, ...] = ()
        self._why_no_gradient = ""

    def run(self) -> Trace:
        self._make_arguments()
        with self._fakes:
            fakes = [v for v in self._values.values() if isinstance(v, torch.Tensor)]
            before = [(f, f._version) for f in fakes]
            outputs = self._check_outputs(self._call(self._values), before)
            incoming = [torch.empty_like(o).detach() for o in outputs]
        names = [f"grad_{i}" for i in range(len(outputs))] + list(self._values)
        arguments = [*incoming, *self._values.values()]
        recorded = self._record(arguments, len(outputs), gradients=True)
        if recorded is None:
            recorded = self._record(arguments, len(outputs), gradients=False)
        assert recorded is not None
        symbols = {}
        for axis, size in self._sizes.items():
            for symbol, hint in self._hints():
                if hint == size:
                    symbols[symbol] = axis
        for name, value in self._values.items():
            if isinstance(value, torch.SymFloat):
                symbols[str(self._float_symbols[name])] = f"={name}"
        self._refuse_guards(symbols)
        return Trace(
            recorded.graph,
            names,
            len(outputs),
            self._has_gradient,
            symbols,
            {v: k for k, v in self._sizes.items()},
            dict(self._numbers),
            self._why_no_gradient,
        )

    def _hints(self) -> Iterator[tuple[str, int]]:
        values = getattr(self._env, "backed_var_to_val", None) or self._env.var_to_val
        for symbol, value in values.items():
            with contextlib.suppress(TypeError, ValueError):
                yield str(symbol), int(value)

    def _make_arguments(self) -> None:
        self._float_symbols: dict[str, Any] = {}
        self._numbers: dict[str, float] = {}
        for parameter in self._source.parameters:
            name = parameter.name
            if name in self._example.dims:
                dims = self._example.dims[name]
                if self._more and set(self._example.frame) <= set(dims):
                    dims = (*self._more, *dims)
                shape = [1 if d is None else self._sizes[d] for d in dims]
                made = self._fakes.from_tensor(
                    torch.empty(shape, device="meta"), static_shapes=False
                )
                self._values[name] = made.requires_grad_()
            elif name in self._example.numbers:
                place = len(self._float_symbols) + 10 * self._turn
                value = self._numbers[name] = _unlikely(self._example.numbers[name], place)
                origin = ConstantSource(name)
                symbol = self._env.create_unspecified_symbol(value, source=origin)
                self._float_symbols[name] = symbol
                number = self._env.create_symfloatnode(symbol, hint=value, source=origin)
                self._values[name] = number

    def _call(self, values: dict[str, Any]) -> Any:
        source = self._source
        given = {**values, **self._example.fixed}
        arguments = [given[p.name] for p in source.parameters if p.name in given]
        try:
            return source.function(*arguments)
        except Exception as error:  # the user's own code raised it
            raise _explained(source, error) from None

    def _check_outputs(self, result: Any, before: list[tuple[Any, int]]) -> tuple[Any, ...]:
        source = self._source
        returned = next(
            (s.first for s in reversed(source.statements) if s.text.startswith("return")), None
        )
        for name, value in self._values.items():
            if isinstance(value, torch.Tensor):
                version = next(v for t, v in before if t is value)
                if value._version != version:
                    raise source.error(
                        f"{source.name} changes {name}; an op leaves its arguments as they are: "
                        f"make a new tensor, as in {name} = {name} + 1 for {name} += 1"
                    )
        outputs = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        for output in outputs or (None,):
            if not isinstance(output, torch.Tensor):
                kind = type(output).__name__
                raise source.error(
                    f"{source.name} returns a {kind}; a formula returns a tensor or several, as in "
                    "return y, z",
                    returned,
                )
            if not output.is_floating_point():
                raise source.error(
                    f"{source.name} returns a tensor of {output.dtype}; the kernels make floating "
                    "point numbers: convert it, as in mask.to(x.dtype)",
                    returned,
                )
            if output.dtype != torch.float32:
                raise source.error(
                    f"{source.name} returns {output.dtype} for float32 tensors; return the dtype "
                    "of its arguments, as in y.to(x.dtype)",
                    returned,
                )
            for name, value in self._values.items():
                if isinstance(value, torch.Tensor) and (output is value or output._base is value):
                    raise source.error(
                        f"{source.name} returns its argument {name}, or a view of it; an op makes "
                        "new tensors: leave it out",
                        returned,
                    )
        if len({id(o) for o in outputs}) < len(outputs):
            raise source.error(f"{source.name} returns one tensor twice; return it once", returned)
        return outputs

    def _record(self, arguments: list[Any], outputs: int, gradients: bool) -> Any:
        names = list(self._values)

        def joint(*values: Any) -> Any:
            incoming, given = values[:outputs], dict(zip(names, values[outputs:], strict=True))
            with _Lines(self._source):
                result = self._call(given)
            made = list(result) if isinstance(result, (tuple, list)) else [result]
            fx_traceback.current_meta["stack_trace"] = ""
            tensors = [v for v in given.values() if isinstance(v, torch.Tensor)]
            self._has_gradient = [False] * len(tensors)
            if not gradients or not any(o.requires_grad for o in made):
                return made
            pairs = [(o, g) for o, g in zip(made, incoming, strict=True) if o.requires_grad]
            found = torch.autograd.grad(
                [o for o, _ in pairs], tensors, [g for _, g in pairs], allow_unused=True
            )
            self._has_gradient = [g is not None for g in found]
            return [*made, *(g for g in found if g is not None)]

        tables = select_decomp_table()
        try:
            with self._fakes, fx_traceback.preserve_node_meta():
                return make_fx(joint, decomposition_table=tables)(*arguments)
        except Exception as error:
            if not gradients or isinstance(error, type(self._source.error(""))):
                raise
            self._why_no_gradient = f"its gradient cannot be traced: {_first_line(error)}"
            return None

    def _refuse_guards(self, symbols: dict[str, str]) -> None:
        """A choice that depends on a size holds for the example alone."""
        for symbol, range in self._env.var_to_range.items():
            axis = symbols.get(str(symbol), "=")
            if not axis.startswith("=") and (range.lower > 4 or range.upper < max(_SIZES)):
                raise self._source.error(
                    f"{self._source.name} depends on the size of a dim, which is taken to be from "
                    f"{range.lower} to {range.upper}; kernels are written for any sizes: leave the "
                    "condition out"
                )
        for guard in self._env.guards:
            free = [str(s) for s in guard.expr.free_symbols]
            axes = [symbols[s] for s in free if s in symbols and not symbols[s].startswith("=")]
            if axes and len(free) == len(axes) and not _holds(guard.expr):
                trace = getattr(guard.sloc, "maybe_user_loc", None)
                raise self._source.error(
                    f"{self._source.name} depends on the size of a dim ({trace or guard.expr}); "
                    "kernels are written for any sizes: leave the condition out"
                )


def _holds(guard: Any) -> bool:
    """Whether a condition on sizes holds for those that calls may have."""
    symbols = list(guard.free_symbols)
    for base in (5, 6, 7, 31, 32, 33, 100, 101, 128, 1000, 1024, 1025, 4096, 65536):
        given = {s: base + 2 * i for i, s in enumerate(symbols)}
        if guard.subs(given) == False:  # noqa: E712  sympy's own false
            return False
    return True


def _unlikely(value: float, turn: int) -> float:
    """A value near the given one that no constant of a formula has."""
    nudge = 1 + (turn + 1) * 0.00271828
    return round((value or 0.5) * nudge, 12)


def _explained(source: Source, error: Exception) -> Exception:
    if isinstance(error, type(source.error(""))):
        return error
    line = line_of(error, source)
    kind = type(error).__name__
    text = _first_line(error)
    if "in-place" in text:
        return source.error(
            f"{source.name} changes an argument in place; an op leaves them as they are: make a "
            "new tensor, as in x = x + 1 for x += 1",
            line,
        )
    if "data-dependent" in str(error).lower() or kind in (
        "DataDependentOutputException",
        "GuardOnDataDependentSymNode",
        "DynamicOutputShapeException",
    ):
        return source.error(
            "the formula depends on the values of a tensor (if, bool(), .item(), .nonzero()); "
            "kernels compute all elements alike: use torch.where",
            line,
        )
    if isinstance(error, TypeError) and "missing" in text:
        return source.error(f"{text}; give every parameter a kind, as in x: Tensor", line)
    return source.error(f"the example call raises {kind}: {text}", line)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings and the log that torch writes while it traces."""
    loggers = [logging.getLogger(n) for n in ("torch.fx", "torch._dynamo", "torch._subclasses")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
