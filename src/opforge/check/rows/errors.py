# SPDX-License-Identifier: Apache-2.0
"""Rows whose right result may be an error, which must name the argument and what is wrong."""

from __future__ import annotations

import re

import torch

from opforge.check.row import Fault, NotApplicable, Trial, row
from opforge.check.situation import Situation
from opforge.truth import compare, inputs

_OTHER_DTYPES = (torch.int32, torch.int64, torch.bool, torch.complex64, torch.float16)


def _refused(s: Situation, kinds: tuple[type[Exception], ...], what: str) -> str:
    """The message of the error that a call must raise."""
    try:
        s.call()
    except kinds as error:
        return str(error)
    except Exception as error:
        wanted = " or ".join(k.__name__ for k in kinds)
        raise Fault(f"{what}: raises {type(error).__name__}, not {wanted}: {error}") from None
    raise Fault(f"{what}: accepted without an error")


def names_it(message: str, word: str) -> bool:
    """Whether a message contains a word, not just as a part of a longer one."""
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", message) is not None


def _demand_words(message: str, words: list[str], what: str) -> None:
    missing = [w for w in words if not names_it(message, w)]
    if missing:
        raise Fault(f"{what}: the message does not say {', '.join(missing)}: {message!r}")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@row(
    19,
    "unsupported-dtype",
    "c s g",
    "A kernel that reads the bits of another dtype as its own still gets numbers. The op must "
    "refuse the dtype with an error that lists the supported ones.",
    star=True,
)
def unsupported_dtype(t: Trial) -> None:
    """The op raises a TypeError that lists the supported dtypes."""
    base = t.largest()
    for dtype in _OTHER_DTYPES:
        if dtype in t.op.dtypes:
            continue
        s = base
        for name in base.floats or base.tensors:
            s = s.change(name, inputs.to_dtype, dtype)
        what = f"tensors of {dtype}"
        message = _refused(t.trying(s), (TypeError,), what)
        _demand_words(message, [_short(d) for d in t.op.dtypes], what)


@row(
    20,
    "mixed-dtypes",
    "c s g",
    "Two dtypes in one call must give a documented promotion, or an error that names both.",
)
def mixed_dtypes(t: Trial) -> None:
    """Each tensor in turn has another dtype than the rest."""
    tried = 0
    for base in t.kinds(t.dtypes[0]):
        for name in base.floats if len(base.floats) > 1 else ():
            other = next((d for d in t.op.allowed(name) if d != base.floats[name].dtype), None)
            if other is None:
                continue
            tried += 1
            s = t.trying(base.change(name, inputs.to_dtype, other))
            if s.makes_sense():
                s.forward()
                continue
            message = _refused(s, (TypeError, ValueError), f"{name} in {other}")
            _demand_words(message, [name, str(other)], f"{name} in {other}")
    if not tried:
        raise NotApplicable("it has one floating point tensor, or one dtype")


@row(
    21,
    "mismatched-shapes",
    "c s g",
    "With shapes that do not fit, a kernel reads past the end. The op must raise an error that "
    "names the argument and both shapes.",
    star=True,
)
def mismatched_shapes(t: Trial) -> None:
    """Each dim of each tensor in turn is one longer than it should be."""
    tried = 0
    for base in t.kinds(t.dtypes[0]):
        for name, tensor in base.tensors.items() if len(base.tensors) > 1 else ():
            for dim in range(tensor.dim()):
                shape = list(tensor.shape)
                shape[dim] += 1
                s = t.trying(base.change(name, inputs.resample, tuple(shape)))
                tried += 1
                if s.makes_sense():
                    s.forward()
                    continue
                what = f"{name} of shape {tuple(shape)}"
                message = _refused(s, (ValueError, TypeError), what)
                _demand_words(message, [name, str(tuple(shape))], what)
                others = [str(tuple(x.shape)) for n, x in base.tensors.items() if n != name]
                if not any(o in message for o in others):
                    raise Fault(
                        f"{what}: the message names no other shape ({', '.join(others)}): "
                        f"{message!r}"
                    )
    if not tried:
        raise NotApplicable("it has one tensor")


@row(
    22,
    "mixed-devices",
    "g",
    "A CPU pointer in a GPU kernel is an illegal address, after which the process cannot use the "
    "GPU.",
    star=True,
)
def mixed_devices(t: Trial) -> None:
    """Each tensor in turn is on the CPU; the op raises a ValueError that names both devices."""
    base = t.largest()
    if len(base.tensors) < 2:
        raise NotApplicable("it has one tensor")
    for name in base.tensors:
        s = t.trying(base.change(name, inputs.to_device, "cpu"))
        message = _refused(s, (ValueError,), f"{name} on the CPU")
        _demand_words(message, ["cuda:0", "cpu"], f"{name} on the CPU")
    base.call()


@row(
    24,
    "label-out-of-range",
    "c s g",
    "A label past the last class makes a kernel read outside its tensors. The op must refuse it "
    "and keep working.",
)
def label_out_of_range(t: Trial) -> None:
    """One value out of range gives an error that names the tensor, or the reference's result."""
    tried = False
    for base in t.kinds(t.dtypes[0]):
        integers = [
            name
            for name, x in base.tensors.items()
            if not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)
        ]
        if integers and base.elements:
            tried = True
            _out_of_range(t, base, integers)
    if not tried:
        raise NotApplicable("it has no integer tensor")


def _out_of_range(t: Trial, base: Situation, integers: list[str]) -> None:
    right = base.forward()
    for name in integers:
        for value in _far_values(base.tensors[name].dtype):
            s = t.trying(base.change(name, inputs.put, value, seed=t.seed))
            if s.makes_sense():
                s.forward()
                continue
            message = _refused(s, (ValueError, IndexError), f"{name} with a value of {value}")
            _demand_words(message, [name], f"{name} with a value of {value}")
    for a, b in zip(base.forward(), right, strict=True):
        if not bool(compare.same_bits(a, b).all()):
            raise Fault("after the op refused a label, its results differ from those before")


def _far_values(dtype: torch.dtype) -> tuple[int, ...]:
    """Values that no label has, within the dtype; -1 may mark a row that is ignored."""
    limits = torch.iinfo(dtype)
    return max(-(10**6), limits.min), max(-1, limits.min), min(10**6, limits.max)


@row(
    28,
    "eps",
    "c s g",
    "An eps of 0 can divide by zero, and a negative one can give NaN, so the op must validate it.",
)
def eps(t: Trial) -> None:
    """A negative eps and NaN are refused by name; 0 is refused, or the result is right."""
    if "eps" not in [a.name for a in t.op.forward.args]:
        raise NotApplicable("it has no argument eps")
    base = t.largest()
    for value in (-1.0, float("nan")):
        message = _refused(t.trying(base.set("eps", value)), (ValueError,), f"eps = {value}")
        _demand_words(message, ["eps"], f"eps = {value}")
    zero = t.trying(base.set("eps", 0.0))
    if zero.makes_sense():
        zero.both()
    else:
        _demand_words(_refused(zero, (ValueError,), "eps = 0"), ["eps"], "eps = 0")
