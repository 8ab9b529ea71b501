# SPDX-License-Identifier: Apache-2.0
"""What an op must have to leave opforge."""

from __future__ import annotations

from collections.abc import Sequence

from opforge.build.targets import FOR_USERS, has_sources
from opforge.errors import RecordError
from opforge.op import Op, PackageHeaders


def must_have_kernels(op: Op, targets: Sequence[str] = FOR_USERS) -> None:
    """Raise unless the op has sources of its own for one of the targets."""
    if op.composed is not None:
        raise RecordError(
            f"{op.name} is composed of other ops in Python and has no kernel of its own; name the "
            "ops that it is made of"
        )
    if not op.self_contained:
        raise RecordError(
            f"the backward of {op.name} is composed of other ops in Python, which an export cannot "
            "hold; use opforge itself, or name ops that have all their kernels"
        )
    if not any(has_sources(op, target) for target in targets):
        raise RecordError(
            f"{op.name} has no source for {' or '.join(targets)}, so there is nothing to "
            f"export; add a kernel (cpu.cpp, cuda.cu) to {op.folder}"
        )


def must_have_its_headers(op: Op) -> None:
    """Raise if the op includes headers of an installed package."""
    for one in op.build.include:
        if isinstance(one, PackageHeaders):
            raise RecordError(
                f"{op.name} includes headers of the installed package {one.distribution}, which "
                "an export cannot hold; only an op without PackageHeaders can be exported"
            )
