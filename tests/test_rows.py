# SPDX-License-Identifier: Apache-2.0
"""The rows of `opforge check` for every built-in op, wherever this machine can run it.

In full it takes minutes for each op. One op gets the full check, so that the rows themselves are
tried. One of each kind gets every row of the quick check, all others the rows that find most. The
rest is for --nightly.
"""

from __future__ import annotations

import pytest
import torch

from opforge import discover, testing

PLACES = ["cpu", "sim", "cuda"] if torch.cuda.is_available() else ["cpu", "sim"]
IN_FULL = "relu"
QUICK = ("cumsum", "dropout", "scale_bias_relu", "softmax")
FEW = (
    *("own-cases", "gradients", "odd-sizes", "strides", "one-nan", "gradient-values", "pairs"),
    *("guard-pages", "statistics", "backward-reference", "public-function", "module-is-the-op"),
    *("far-apart", "empty"),
)

for _name in discover.builtin_names():
    _full = testing.matrix(_name, on=PLACES, full=True)
    if _name != IN_FULL:
        _quick = testing.matrix(_name, on=PLACES)
        if _name not in QUICK:
            globals()[f"test_{_name}_in_few_rows"] = testing.matrix(_name, on=PLACES, only=FEW)
            _quick = pytest.mark.nightly(_quick)
        globals()[f"test_{_name}"] = _quick
        _full = pytest.mark.nightly(_full)
    globals()[f"test_{_name}_in_full"] = _full


@pytest.mark.parametrize("name", [n for n in discover.builtin_names() if n != IN_FULL])
def test_the_starred_row_that_a_quick_check_leaves_out(name: str) -> None:
    testing.check(name, on=["cpu"], full=True, only=["import"])
