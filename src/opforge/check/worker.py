# SPDX-License-Identifier: Apache-2.0
"""The worker process that runs rows. If a kernel crashes, only this process ends.

process.py starts it. It reads rows from standard input and writes results to a separate pipe,
because kernels may print. Each message is a line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import torch

from opforge import discover
from opforge.check import situation
from opforge.check.place import Place
from opforge.check.results import FAILED, NO_MEMORY, NOT_APPLICABLE, NOT_RUN, PASSED, Result
from opforge.check.row import NotApplicable, NotRun, Row, Trial, find
from opforge.check.situation import Situation
from opforge.errors import OpforgeError, RecordError, SimulationError
from opforge.op import Op, as_tuple
from opforge.registration.arguments import check_kinds
from opforge.terminal.processes import end_with_parent
from opforge.truth import cases, compare


def main() -> None:
    """Examine the op, then run the rows that arrive, one per line."""
    end_with_parent()
    job = json.loads(sys.argv[1])
    with os.fdopen(int(sys.argv[2]), "w", buffering=1) as out:
        try:
            op = discover.find(job["op"])
            examine(op, job["seed"])
        except Exception as error:
            _say(out, impossible=_words(error))
            return
        _say(out, ready=True)

        def tell(s: situation.Situation) -> None:
            _say(out, trying=s.describe(), script=s.script() if s.last else "")

        situation.Situation.before_run = tell
        for line in sys.stdin:
            name, place = json.loads(line)
            (row,) = find([name])
            trial = Trial(op, Place(place), job["seed"], job["full"], job["sanitize"])
            result = run(row, trial)
            lost = _lost_gpu(trial.place)
            if lost and result.outcome == PASSED:  # CUDA reports errors of kernels late
                result.outcome, result.text = FAILED, lost
            _say(out, result=asdict(result), kernel=_kernel(trial), last=bool(lost))
            if lost:
                return


def _lost_gpu(place: Place) -> str:
    """The error that a kernel left in the GPU context, after which nothing works, or ""."""
    if not place.kind.on_gpu or not torch.cuda.is_initialized():
        return ""
    try:
        torch.cuda.synchronize()
    except Exception as error:
        return f"a kernel has broken the GPU context: {str(error).splitlines()[0]}"
    return ""


def _say(out: IO[str], **message: Any) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


def _kernel(trial: Trial) -> str:
    return "" if trial.place.missing(trial.op) else trial.place.kernel(trial.op)


def _words(error: BaseException) -> str:
    if isinstance(error, OpforgeError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def examine(op: Op, seed: int) -> None:
    """Raise RecordError for a record whose reference or cases cannot be used for a check."""
    dtypes = [d for d in op.dtypes if d.is_floating_point] or op.dtypes
    found = 0
    for s in situation.own(op, Place("cpu"), dtypes[0], seed):
        found += 1
        what = f"case {found - 1} of {op.name}"
        try:
            check_kinds(op, s.case)
        except TypeError as error:
            raise RecordError(f"{what} does not match its schema {op.schema!r}: {error}") from None
        assert op.reference is not None
        try:
            first, second = (as_tuple(op.reference(*s.case)) for _ in range(2))
        except Exception as error:
            raise RecordError(
                f"the reference of {op.name} raises on {what} ({s.describe()}): "
                f"{type(error).__name__}: {error}"
            ) from None
        if len(first) != len(op.outputs):
            raise RecordError(
                f"the reference of {op.name} returns {len(first)} values, "
                f"its schema {op.schema!r} has {len(op.outputs)}"
            )
        _examine_dtypes(op, s, what, first)
        if not all(bool(compare.same_bits(a, b).all()) for a, b in zip(first, second, strict=True)):
            raise RecordError(
                f"the reference of {op.name} is not deterministic: called twice on {what} it gives "
                "two results. It defines the correct result, so it must keep no state and draw "
                "no random numbers (take a seed as an argument)"
            )
    if not found:
        raise RecordError(f"the record of {op.name} yields no cases; there is nothing to check")


def _examine_dtypes(op: Op, s: Situation, what: str, outputs: tuple[Any, ...]) -> None:
    """Raise RecordError if the reference returns wrong dtypes or gradients of wrong shapes."""
    given = [x.dtype for x in s.floats.values()]
    for argument, output in zip(op.outputs, outputs, strict=True):
        if not isinstance(output, torch.Tensor):
            raise RecordError(
                f"the reference of {op.name} returns a {type(output).__name__} for "
                f"{argument.name} on {what}; it must return a tensor"
            )
        if output.dtype == torch.float64 and given and torch.float64 not in given:
            raise RecordError(
                f"the reference of {op.name} returns float64 for {argument.name} on {what}, though "
                f"no argument is ({s.describe()}); a constant or a numpy value has promoted it: "
                "convert the result, as in y.to(x.dtype)"
            )
    if op.backward is None or not s.has_gradient():
        return
    wanted = cases.differentiated(op, cases.as_leaves(s.case))
    with torch.no_grad():
        returned = op.returned(*s.case)
        wanted += [False] * (len(returned) - len(wanted))
        grads = [torch.ones_like(o) if w else None for o, w in zip(returned, wanted, strict=True)]
        try:
            found = op._gradient.by(op.gradient_formula, s.case, returned, grads)
        except Exception as error:
            raise RecordError(
                f"the backward's reference of {op.name} raises on {what} ({s.describe()}): "
                f"{type(error).__name__}: {error}"
            ) from None
    for (name, tensor), gradient in zip(s.floats.items(), found, strict=True):
        if gradient is None:
            continue
        if gradient.shape != tensor.shape or gradient.dtype != tensor.dtype:
            raise RecordError(
                f"the backward's reference of {op.name} returns a gradient of {name} of shape "
                f"{tuple(gradient.shape)} and {gradient.dtype} on {what}; {name} has "
                f"{tuple(tensor.shape)} and {tensor.dtype}"
            )


def run(row: Row, trial: Trial) -> Result:
    """Run one row and return its result with a text."""
    started = time.monotonic()
    result = Result(row.name, trial.place.name, PASSED)
    try:
        torch.manual_seed(trial.seed)
        if (missing := trial.place.missing(trial.op)) is not None:
            raise NotRun(missing)
        with warnings.catch_warnings(), _counted(trial.op) as calls:
            warnings.simplefilter("ignore")
            row.run(trial)
        result.text = trial.note
        if not calls and not trial.note:
            raise NotApplicable("no situation of this row fits the op's cases")
    except NotApplicable as reason:
        result.outcome, result.text = NOT_APPLICABLE, str(reason)
    except NotRun as reason:
        result.outcome, result.text = NOT_RUN, str(reason)
    except torch.OutOfMemoryError as error:
        result.outcome = NOT_RUN
        result.text = f"{NO_MEMORY}: {str(error).splitlines()[0]}"
    except (AssertionError, SimulationError) as fault:
        result.outcome, result.text = FAILED, str(fault)
    except Exception as error:
        result.outcome = FAILED
        result.text = f"{_words(error)}\n{_own_lines(error, trial.op)}".strip()
    if result.outcome == FAILED:
        if trial.last is not None:
            result.text += f"\nwith {trial.last.describe()}"
        result.script = trial.last.script() if trial.last is not None and trial.last.last else ""
    result.coverage = trial.coverage
    for what, errors in trial.errors.items():
        if errors:
            result.errors[what] = _summary(errors)
    result.seconds = time.monotonic() - started
    return result


@contextlib.contextmanager
def _counted(op: Op) -> Iterator[list[bool]]:
    """A context that notes whether the op is called. A row without calls has proved nothing."""
    calls: list[bool] = []
    call = op._call

    def counted(*args: Any) -> Any:
        if not torch.compiler.is_compiling():
            calls[:] = [True]
        return call(*args)

    op._call = counted
    try:
        yield calls
    finally:
        op._call = call


def _own_lines(error: BaseException, op: Op) -> str:
    """The lines in the op's folder where an unexpected error came from."""
    stack = traceback.extract_tb(error.__traceback__)
    frames = [f for f in stack if Path(f.filename).parent == op.folder]
    return "\n".join(f"at {f.filename}:{f.lineno}: {f.line}" for f in frames[-2:])


def _summary(errors: list[compare.Errors]) -> dict[str, float]:
    ours, torchs = compare.Error(), compare.Error()
    for e in errors:
        ours.merge(e.ours)
        torchs.merge(e.torchs)
    return {
        "max": ours.largest,
        "rms": ours.rms,
        "torch_max": torchs.largest,
        "torch_rms": torchs.rms,
    }


if __name__ == "__main__":
    main()
    os._exit(0)  # everything is written, and torch takes a second to shut down
