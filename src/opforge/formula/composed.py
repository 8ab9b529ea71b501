# SPDX-License-Identifier: Apache-2.0
"""The backward of a composed op that is its reference: by autograd, on every device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from opforge.op import Backward
from opforge.registration.gradient import derive
from opforge.registration.schema import parse


def by_autograd(schema: str, reference: Callable[..., Any]) -> Backward:
    """The vector-Jacobian product of a reference, for a record with this schema."""
    derived = derive(parse(schema), reference)
    return replace(derived, composed=derived.reference)
