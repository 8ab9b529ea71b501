# SPDX-License-Identifier: Apache-2.0
"""The row with random inputs: hypothesis draws them, and shrinks those that fail."""

from __future__ import annotations

import torch

from opforge.check.row import Fault, NotApplicable, Trial, row
from opforge.check.situation import Situation, TooLarge
from opforge.truth import inputs

_SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 127, 129, 255, 257)
_LAYOUTS = (
    inputs.contiguous,
    inputs.offset,
    inputs.stepped,
    inputs.padded,
    inputs.transposed,
    inputs.expanded,
    inputs.expanded_last,
    inputs.windows,
)
_GRADIENTS = (
    inputs.random_gradient,
    inputs.narrow_gradient,
    inputs.expanded_gradient,
    inputs.transposed_gradient,
)
_VALUES = (None, None, None, float("nan"), float("inf"), -float("inf"), -0.0)


@row(
    0,
    "random",
    "c s g",
    "Random combinations of shapes, layouts, values and gradients find faults that nobody thought "
    "of. A failure is shrunk to the smallest input that still fails.",
)
def random(t: Trial) -> None:
    """Random situations: dtype, kind of case, sizes, layouts, a special value, a gradient."""
    # Imported here because listing the rows does not need it.
    from hypothesis import HealthCheck, assume, given, seed, settings
    from hypothesis import strategies as st
    from hypothesis.errors import Flaky, Unsatisfiable

    bases = [s for dtype in t.dtypes for s in t.kinds(dtype)]
    count = 150 if t.full else 25

    ran = [0]
    failures: list[tuple[Situation, Exception]] = []

    @seed(t.seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        s = data.draw(st.sampled_from(bases))
        sizes = s.sizes()
        drawn = [data.draw(st.sampled_from(_SIZES)) for _ in sizes[:4]]
        while _product(drawn) > 20_000:
            drawn[drawn.index(max(drawn))] //= 4
        new = dict.fromkeys(sizes, 2)
        try:
            s = s.resize({**new, **dict(zip(sizes, drawn, strict=False))})
        except TooLarge:
            assume(False)
        value = data.draw(st.sampled_from(_VALUES))
        for name, tensor in s.tensors.items():
            if value is not None and tensor.is_floating_point():
                s = s.change(name, inputs.put, value, seed=t.seed, share=0.1)
            if tensor.dim() and tensor.numel():
                s = s.change(name, data.draw(st.sampled_from(_LAYOUTS)))
        assume(s.makes_sense())
        ran[0] += 1
        try:
            t.trying(s).forward()
            if s.has_gradient():
                s.backward(data.draw(st.sampled_from(_GRADIENTS)))
        except Exception as error:
            failures.append((s, error))
            raise

    try:
        run()
    except Unsatisfiable:
        raise NotApplicable("no drawn situation fits the op's cases") from None
    except Flaky:
        # There is nothing to shrink. After an illegal address no call works any more; otherwise the
        # op is not a pure function, and the first failure says as much as any other.
        t.last, error = failures[0]
        if isinstance(error, torch.AcceleratorError):
            raise error from None
        raise Fault(f"fails only sometimes with the same inputs: {error}") from None
    if ran[0]:
        t.note = f"{ran[0]} situations"


def _product(sizes: list[int]) -> int:
    return torch.Size(sizes).numel()
