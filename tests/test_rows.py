# SPDX-License-Identifier: Apache-2.0
"""Every row of `opforge check` for every built-in op, wherever this machine can run it.

In full it takes minutes for each op. All ops get the quick check, every row of it; in full there is
one, so that the rows themselves are tried, and with --nightly all of them.
"""

from __future__ import annotations

import pytest
import torch

from opforge import discover, testing

PLACES = ["cpu", "sim", "cuda"] if torch.cuda.is_available() else ["cpu", "sim"]
IN_FULL = "relu"

for _name in discover.builtin_names():
    _full = testing.matrix(_name, on=PLACES, full=True)
    if _name != IN_FULL:
        globals()[f"test_{_name}"] = testing.matrix(_name, on=PLACES)
        _full = pytest.mark.nightly(_full)
    globals()[f"test_{_name}_in_full"] = _full


@pytest.mark.parametrize("name", [n for n in discover.builtin_names() if n != IN_FULL])
def test_the_starred_row_that_a_quick_check_leaves_out(name: str) -> None:
    testing.check(name, on=["cpu"], full=True, only=["import"])
