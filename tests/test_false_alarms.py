# SPDX-License-Identifier: Apache-2.0
"""Alarms that the check once raised on something that was right."""

from __future__ import annotations

import torch
from helpers import load_record

from opforge.check.place import Place
from opforge.check.row import Trial


def test_the_largest_case_has_no_empty_tensor(tmp_path):
    """A kernel may return before it looks at dtypes where there is nothing to do."""
    op = load_record(
        tmp_path,
        """
        op = Op(
            schema="looked_up(Tensor table, Tensor index) -> Tensor y",
            reference=lambda table, index: table[index],
            own_dtypes={"index": (torch.int64,)},
            cases=lambda make: [
                (make(2), torch.zeros(3, dtype=torch.int64)),
                (make(90), torch.zeros(0, dtype=torch.int64)),
            ],
        )
        """,
    )
    s = Trial(op, Place("cpu")).largest(torch.float32)
    assert [x.shape[0] for x in s.case] == [2, 3]
