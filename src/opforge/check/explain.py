# SPDX-License-Identifier: Apache-2.0
"""Explains failures of opcheck and gradcheck, and says how to fix them."""

from __future__ import annotations

import re

# Pattern of torch's message -> its meaning and the fix. The first match is used.
_OPCHECK = [
    (
        r"metadata did not match|[Ss]trides? .*(mismatch|did not match|differ)|Stride mismatch",
        "the strides of the kernel's output differ from those of the fake kernel, by which "
        "torch.compile plans memory. Outputs must be contiguous, or have the strides of the input "
        "that the record names with like=. Allocate them with opforge::empty(sizes, x) or "
        "opforge::empty_like(x).",
    ),
    (
        r"[Dd]types? .*(mismatch|did not match|differ)|dtype",
        "the dtype of the kernel's output differs from that of the fake kernel, which is the "
        "reference's. Give the output the dtype that the reference gives it.",
    ),
    (
        r"[Ss]hapes? .*(mismatch|did not match|differ)",
        "the shape of the kernel's output differs from that of the fake kernel, which is the "
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
        "the op's results when it is traced (as by torch.compile) differ from those of a plain "
        "call: something depends on being compiled, on hidden state or on memory that was not "
        "written.",
    ),
]

_GRADCHECK = [
    (
        r"nondeterminis|not reentrant",
        "the backward gives different gradients when it runs again on the same inputs. Look for "
        "atomics, uninitialised memory, or a saved tensor that it overwrites.",
    ),
    (
        r"Jacobian mismatch",
        "the backward's gradient is not the derivative of the forward. Compare each pair of "
        "matrices below; the numerical one comes from the forward. A constant ratio means a "
        "forgotten factor, a transposed matrix means swapped indices, and equal rows mean a wrong "
        "sum over a broadcast dim.",
    ),
    (
        r"not supported for",
        "the backward has no gradient. Declare it as Backward(schema, reference) with a "
        "reference that can be differentiated.",
    ),
]


def opcheck(message: str) -> str:
    """Explain a failure of torch.library.opcheck."""
    return _explained(message, _OPCHECK, "opcheck")


def gradcheck(message: str) -> str:
    """Explain a failure of torch.autograd.gradcheck."""
    return _explained(message, _GRADCHECK, "gradcheck")


def _explained(message: str, table: list[tuple[str, str]], tool: str) -> str:
    message = message.strip()
    for pattern, text in table:
        if re.search(pattern, message):
            return f"{text}\n{tool} says: {message}"
    return f"{tool} says: {message}"
