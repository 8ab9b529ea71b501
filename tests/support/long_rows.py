# SPDX-License-Identifier: Apache-2.0
"""What tests of many long rows have in common: a simulated GPU of so few multiprocessors that
blocks take several tiles of rows (row_stream.cuh)."""

from __future__ import annotations

import torch

from opforge import sim

SHORT = torch.bfloat16
# Shape, dtype and multiprocessors. More tiles than a ring has stages; rows that are no multiple of
# a tile; classes of rows that begin alike, with tiles without rows; vectors only some threads have;
# several clusters, small and large.
CASES = [
    ((37, 16_392), SHORT, 4),
    ((21, 16_389), SHORT, 4),
    ((17, 20_000), torch.float16, 8),
    ((19, 40_001), SHORT, 8),
    ((25, 16_384), torch.float32, 4),
    ((9, 16_389), torch.float32, 4),
]


def small_gpu(multiprocessors, **options):
    """The simulator with its race detector."""
    return sim.active("race", device=sim.Device(multiprocessors=multiprocessors), **options)


def kernels(calls):
    """The names of all that were launched."""
    return {launch.kernel for call in calls for launch in call.launches}


def drawn(*shape, dtype=SHORT):
    """Random numbers, always the same."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(shape, generator=generator).to(dtype)
