# SPDX-License-Identifier: Apache-2.0
"""What opcheck's and gradcheck's failures mean, in a sentence, with what to do about it."""

from __future__ import annotations

import re

# A piece of torch's message -> what it means and the fix. The first that matches is taken.
_OPCHECK = [
    (
        r"metadata did not match|[Ss]trides? .*(mismatch|did not match|differ)|Stride mismatch",
        "the kernel's output has other strides than the fake kernel promised. torch.compile lays "
        "out memory by that promise. Outputs are contiguous, or like the input that the record "
        "names with like=: allocate them with opforge::empty(sizes, x) or opforge::empty_like(x).",
    ),
    (
        r"[Dd]types? .*(mismatch|did not match|differ)|dtype",
        "the kernel's output has another dtype than the fake kernel promised, which is the "
        "reference's. Give the output the dtype that the reference gives it.",
    ),
    (
        r"[Ss]hapes? .*(mismatch|did not match|differ)",
        "the kernel's output has another shape than the fake kernel promised, which is the "
        "reference's. Make both the same.",
    ),
    (
        r"Argument .* is not defined to alias output but was aliasing|alias",
        "an output shares memory with an input, but the schema says it is new. Return a copy.",
    ),
    (
        r"Argument .* is not defined as mutable but was mutated|mutat",
        "the kernel writes to one of its inputs, but the schema says it does not. Write to a new "
        "tensor: autograd and torch.compile rely on the schema.",
    ),
    (
        r"requires_grad|autograd|Autograd",
        "gradients do not flow as autograd expects. The output of an op with a backward must come "
        "from the op itself; do not detach, and do not call autograd inside.",
    ),
    (
        r"Tensor-likes are not close|not equal|mismatch",
        "the op gives other numbers when it is traced (as torch.compile does) than when it is run "
        "plainly: something depends on being compiled, on hidden state or on memory that was not "
        "written.",
    ),
]

_GRADCHECK = [
    (
        r"nondeterminis|not reentrant",
        "the backward gives other gradients when it runs again on the same inputs. Look for "
        "atomics, for memory that is not initialised, for a saved tensor that it overwrites.",
    ),
    (
        r"Jacobian mismatch",
        "the backward's gradient is not the derivative of the forward. In each pair of matrices "
        "below the numerical one is that of the forward as it computes: a constant factor between "
        "the two is a forgotten factor, a transposed one a mixed-up index, equal rows a wrong sum "
        "over a broadcast dim.",
    ),
    (
        r"not supported for",
        "the gradient of the backward is not there. Give the backward a schema of its own "
        "(Backward(...)), whose reference can be differentiated.",
    ),
]


def opcheck(message: str) -> str:
    """A failure of torch.library.opcheck, explained."""
    return _explained(message, _OPCHECK, "opcheck")


def gradcheck(message: str) -> str:
    """A failure of torch.autograd.gradcheck, explained."""
    return _explained(message, _GRADCHECK, "gradcheck")


def _explained(message: str, table: list[tuple[str, str]], tool: str) -> str:
    message = message.strip()
    for pattern, text in table:
        if re.search(pattern, message):
            return f"{text}\n{tool} says: {message}"
    return f"{tool} says: {message}"
